"""The loop, optimizers, schedules and checkpoints."""
