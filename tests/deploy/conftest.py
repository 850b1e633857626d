import pytest

from deployment_processes import DeploymentProcesses
from process_starter import ProcessStarter


@pytest.fixture(scope="session")
def starter():
    """The process that starts the processes of all deployments."""
    starter = ProcessStarter()
    yield starter
    starter.close()


@pytest.fixture
def deploy(starter, tmp_path):
    """Build deployments whose processes end with the test."""
    deployments = []

    def build(values, keys=None, folder="run"):
        deployments.append(DeploymentProcesses(starter, tmp_path / folder, values, keys))
        return deployments[-1]

    yield build
    for deployment in deployments:
        deployment.close()
