"""The one exception whose message is written for users."""


class RelmError(Exception):
    """A user's mistake or a fault outside the program: names the file, key or line, what was found and expected, what to do.

    The command line prints the message without a traceback and exits with ``exit_code``.
    """

    exit_code = 1
