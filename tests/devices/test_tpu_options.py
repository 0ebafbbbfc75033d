"""Options for libtpu in the environment."""

from relm.devices.tpu_options import VARIABLE, set_options

RANDOM = "--xla_tpu_spmd_rng_bit_generator_unsafe"


def test_options_are_added_to_those_already_set() -> None:
    environment = {VARIABLE: "--xla_of_mine=3"}
    set_options(environment)
    assert environment[VARIABLE] == f"--xla_of_mine=3 {RANDOM}=true"
    set_options(environment)
    assert environment[VARIABLE].count(RANDOM) == 1


def test_a_users_own_value_stays() -> None:
    environment = {VARIABLE: f"{RANDOM}=false"}
    set_options(environment)
    assert environment[VARIABLE] == f"{RANDOM}=false"
