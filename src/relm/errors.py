"""The one exception that is meant for a person to read."""


class RelmError(Exception):
    """A user's mistake or a fault of the world: names the file, key or line, what was found, what was expected, what to do.

    The command line prints the message without a traceback and exits with ``exit_code``.
    """

    exit_code = 1
