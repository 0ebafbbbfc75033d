"""An original's script from outside the package, which reads the windows of `causal` from their end."""

import backwards  # noqa: F401 - it adds the options that its class reads

from relm.recipes.as_published import BuilderDeclaration, register_builder

register_builder(BuilderDeclaration(name="backwards_script", objective="causal", read="backwards:BackwardsExamples"))
