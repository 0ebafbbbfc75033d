"""Builders that give the instances of four published scripts bit for bit, their defects included.

The right way is the default of `relm.examples`; `relm.recipes.objectives` declares these for `as_published` in a recipe.
"""
