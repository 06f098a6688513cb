"""Kubernetes as far as no container is needed: a real API server on a real etcd, and what a node does with pods.

There is no engine for containers here, so a node that runs images cannot be had: each executor's command is a process
of this machine, with the variables of its pod, in this environment instead of the image's.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from penstock.devstack.servers.base import ManagedServer, ServerGroup
from penstock.host import files, ports, process
from penstock.java import runtime
from penstock.settings import PROJECT, settings

SOURCE = PROJECT / "tests" / "apiserver"
PROGRAMS = {"etcd": "go.etcd.io/etcd/server/v3", "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver"}
NAMESPACE = "penstock"
EXECUTORS = {"labelSelector": "spark-role=executor"}


def programs() -> Path:
    """The folder of etcd and the API server, built from their Go modules: minutes, once. Skips where there is no Go."""
    if not (go := shutil.which("go")):
        pytest.skip("there is no go on PATH, and no API server of Kubernetes without")
    digest = hashlib.sha256((SOURCE / "go.sum").read_bytes()).hexdigest()[:12]
    target = settings().cache / f"apiserver-{digest}"
    with files.publish(target) as fresh:
        if fresh:
            for name, package in PROGRAMS.items():
                options = ["-buildvcs=false", "-ldflags", "-s -w", "-o", str(fresh / name)]
                subprocess.run([go, "build", "-C", str(SOURCE), *options, package], check=True)
    return target


class Etcd(ManagedServer):
    name, label = "etcd", "etcd"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._first = ports.free_port(2)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._first}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"clients": self._first, "peers": self._first + 1}

    def command(self) -> list[str]:
        peers = f"http://127.0.0.1:{self._first + 1}"
        return [
            str(programs() / "etcd"), "--data-dir", str(self.home / "etcd"), "--log-level", "warn", "--unsafe-no-fsync",
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url, "--listen-peer-urls", peers,
            "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
        ]  # fmt: skip

    def ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health").is_success
        return False


class ApiServer(ManagedServer):
    """Its admission as it comes: accounts must be there, and pods what their namespace asks of them."""

    name, label = "apiserver", "Kubernetes's API server"

    def __init__(self, home: Path, etcd: Etcd) -> None:
        super().__init__(home)
        self._etcd, self._port, self._token = etcd, ports.free_port(), secrets.token_hex(16)
        self.folder = home / "apiserver"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def certificate(self) -> Path:
        """Of its authority too, which it makes for itself."""
        return self.folder / "apiserver.crt"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"https": self._port}

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        key = rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (self.folder / "accounts.key").write_bytes(key)
        (self.folder / "tokens").write_text(f'{self._token},admin,admin,"system:masters"\n')

    def command(self) -> list[str]:
        key = str(self.folder / "accounts.key")
        return [
            str(programs() / "kube-apiserver"), "--etcd-servers", self._etcd.url, "--cert-dir", str(self.folder),
            "--bind-address", "127.0.0.1", "--secure-port", str(self._port), "--authorization-mode", "RBAC",
            "--token-auth-file", str(self.folder / "tokens"), "--service-account-issuer", self.url,
            "--service-account-key-file", key, "--service-account-signing-key-file", key,
            "--service-cluster-ip-range", "10.0.0.0/24", "--endpoint-reconciler-type", "none",
        ]  # fmt: skip

    def ready(self) -> bool:
        with suppress(httpx.HTTPError, OSError), self.client() as client:
            return client.get("/readyz").is_success
        return False

    def client(self) -> httpx.Client:
        """As who may do everything."""
        head = {"Authorization": f"Bearer {self._token}"}
        trusted = ssl.create_default_context(cafile=self.certificate)
        return httpx.Client(base_url=self.url, headers=head, verify=trusted, trust_env=False, timeout=30)

    def kubectl(self, *words: str, fails: bool = False) -> str:
        """What it says, as who may do everything; where it is to fail, its error."""
        given = ["--server", self.url, "--token", self._token, "--certificate-authority", str(self.certificate)]
        done = process.run_captured(["kubectl", *given, "--namespace", NAMESPACE, *words])
        assert bool(done.returncode) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout


class Kubernetes(ServerGroup):
    """An API server with its etcd."""

    def __init__(self, home: Path) -> None:
        if not shutil.which("kubectl"):
            pytest.skip("there is no kubectl on PATH")
        programs()
        self.etcd = Etcd(home)
        self.api = ApiServer(home, self.etcd)

    @property
    def servers(self) -> list[ManagedServer]:
        return [self.etcd, self.api]

    def start(self) -> bool:
        started = self.etcd.start()
        self.etcd.wait()
        return self.api.start() or started


class Node(threading.Thread):
    """Runs each executor's pod as a process, tells the API server how it is, and ends those whose pods are gone."""

    def __init__(self, api: ApiServer, logs: Path) -> None:
        super().__init__(name="node")
        self._api, self._logs = api, logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._over = threading.Event()
        self.failed: Exception | None = None

    def __enter__(self) -> Node:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        for one in self._processes.values():
            _end(one)
        assert self.failed is None, self.failed

    def process(self, pod: str) -> psutil.Process:
        return psutil.Process(self._processes[pod].pid)

    def run(self) -> None:
        try:
            with self._api.client() as client:
                while not self._over.wait(0.2):
                    self._look(client)
        except Exception as e:  # told at the end, by whom it was started
            self.failed = e

    def _look(self, client: httpx.Client) -> None:
        pods = pods_of(client)
        for name, pod in pods.items():
            phase, known = pod["status"].get("phase"), self._processes.get(name)
            if known is None and phase == "Pending":
                self._processes[name] = self._begun(name, pod)
                _told(client, name, "Running", {"running": {}})
            elif known and phase == "Running" and (code := known.poll()) is not None:
                _told(client, name, "Failed" if code else "Succeeded", {"terminated": {"exitCode": abs(code)}})
        for name in self._processes.keys() - pods.keys():
            _end(self._processes.pop(name))

    def _begun(self, name: str, pod: dict[str, Any]) -> subprocess.Popen[bytes]:
        [container] = pod["spec"]["containers"]
        given = {one["name"]: one.get("value", "127.0.0.1") for one in container["env"]}
        own = self._logs / name
        (own / "local").mkdir(parents=True)
        # Of the image; and where its volumes are.
        given |= {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "JAVA_HOME": str(runtime.find().home), "HOME": str(own), "SPARK_LOCAL_DIRS": str(own / "local"),
        }  # fmt: skip
        command = [*container["command"], *container["args"]]
        with (own / "log").open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=PROJECT,
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def pods_of(client: httpx.Client) -> dict[str, dict[str, Any]]:
    """Executors, by name."""
    found = client.get(f"/api/v1/namespaces/{NAMESPACE}/pods", params=EXECUTORS).raise_for_status().json()
    return {one["metadata"]["name"]: one for one in found["items"]}


def _told(client: httpx.Client, name: str, phase: str, state: dict[str, Any]) -> None:
    container = {
        "name": "spark-kubernetes-executor", "state": state, "image": "", "imageID": "", "restartCount": 0,
        "ready": phase == "Running",
    }  # fmt: skip
    status = {"phase": phase, "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "containerStatuses": [container]}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/status"
    head = {"Content-Type": "application/merge-patch+json"}
    answer = client.patch(path, json={"status": status}, headers=head)
    # Whoever made it may have taken it away.
    if answer.status_code != httpx.codes.NOT_FOUND:
        answer.raise_for_status()


def _end(one: subprocess.Popen[bytes]) -> None:
    """With all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(one.pid, signal.SIGKILL)
    one.wait()
