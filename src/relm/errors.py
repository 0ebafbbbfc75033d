"""The one exception whose message is written for users."""


class RelmError(Exception):
    """A user's mistake or a fault outside the program. The message names the file, key or line, what was expected, what to do.

    The command line prints it without a traceback and exits with ``exit_code``.
    """

    exit_code = 1
