"""Builders that reproduce the instances of four published scripts bit for bit, their defects included.

The correct builders are the default of `relm.examples`; `relm.recipes.objectives` declares these for `as_published`.
"""
