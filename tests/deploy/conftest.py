import pytest

from deployment_processes import DeploymentProcesses
from key_folders import KeyFolders
from peer_processes import PeerProcesses
from process_starter import ProcessStarter


@pytest.fixture(scope="session")
def starter():
    """The process that starts the processes of all deployments."""
    starter = ProcessStarter()
    yield starter
    starter.close()


@pytest.fixture
def folders(tmp_path):
    """An authority, and the folders of keys whose certificates it signs."""
    return KeyFolders(tmp_path)


@pytest.fixture
def others(tmp_path):
    """Another authority with the same name."""
    return KeyFolders(tmp_path / "others")


@pytest.fixture
def deploy(starter, tmp_path):
    """Build deployments whose processes end with the test."""
    deployments = []

    def build(values, keys=None, folder="run"):
        kind = PeerProcesses if "peers" in values else DeploymentProcesses
        deployments.append(kind(starter, tmp_path / folder, values, keys))
        return deployments[-1]

    yield build
    for deployment in deployments:
        deployment.close()
