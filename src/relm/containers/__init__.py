"""The images that steps run in: how they are pinned and built, where a step belongs, and the line that runs it there.

`lock` reads `containers/lock.yaml`; `placement` decides which image a step needs and whether the network; `run_line` makes the
command of Docker or podman, which `engine` runs. What runs inside an image imports nothing of this.
"""
