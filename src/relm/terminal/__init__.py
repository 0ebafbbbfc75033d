"""Snakemake's terminal: one line for each job, and the outcome or the error last; tracebacks stay in its log file.

Snakemake finds this package through `snakemake_logger_plugin_relm`, which `profiles/default` names.
"""
