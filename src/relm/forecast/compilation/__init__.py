"""The TPU's own compiler applied to a recipe's programs, on a machine without a TPU.

`tracing` makes the programs of a recipe's steps as the trainer does, `tpu_compiler` compiles each for a slice of TPUs,
`program_facts` reads the compiled text and `program_table` prints the figures. The first two run in the TPU's environment,
which `tpu_environment` finds.
"""
