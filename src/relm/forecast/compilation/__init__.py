"""What the TPU's own compiler says of a recipe's programs, on a machine without a TPU.

A recipe's way: `tracing` makes the programs of its steps as the trainer makes them, `tpu_compiler` compiles each for a slice of
TPUs, `program_facts` reads what came out, `result` keeps it and `table` prints it. The first two run in processes of the TPU's
environment, which `environment` finds.
"""
