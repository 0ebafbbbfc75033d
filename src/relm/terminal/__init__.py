"""Snakemake's terminal: one line for each job, the outcome or the error's sentence last; its frames stay in its log file.

`snakemake_logger_plugin_relm`, by which Snakemake finds this package, is next to it; `profiles/default` names it.
"""
