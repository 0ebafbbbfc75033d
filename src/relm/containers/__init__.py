"""The images that steps run in: what is pinned, where a step belongs, and the line that runs it there.

`lock` reads `containers/lock.yaml`; `placement` says which image and whether the network a step needs; `run_line` makes the
command of Docker or podman. What runs inside an image imports nothing of this.
"""
