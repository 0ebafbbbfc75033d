"""The images that steps run in: how they are pinned and built, which one a step needs, and the command that runs it there.

`lock` reads `containers/lock.yaml`; `placement` decides which image a step needs, and whether it needs the network; `run_line`
builds the command of Docker or podman, which `engine` runs. Code inside an image imports none of this.
"""
