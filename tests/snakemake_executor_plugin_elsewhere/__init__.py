"""An executor of Snakemake that starts each job as another machine would: with none of the variables of the main process."""

import os
import subprocess
from typing import Any

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecMode

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=False,
)


class Executor(RealExecutor):
    """Runs one job after another."""

    cores = 1

    def get_python_executable(self) -> str:
        """Return the interpreter that PATH names."""
        return "python"

    def get_exec_mode(self) -> ExecMode:
        """Return that the jobs are on another machine."""
        return ExecMode.REMOTE

    def run_job(self, job: Any) -> None:
        """Run a job to its end."""
        submitted = SubmittedJobInfo(job=job)
        self.report_job_submission(submitted)
        environment = {name: os.environ[name] for name in ("HOME", "PATH")}
        done = subprocess.run(["bash", "-c", self.format_job_exec(job)], env=environment)
        (self.report_job_success if done.returncode == 0 else self.report_job_error)(submitted)

    def cancel(self) -> None:
        """Do nothing: no job is running."""

    def shutdown(self) -> None:
        """Do nothing: no job is running."""
