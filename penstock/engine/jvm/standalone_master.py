"""Talks to the master of a standalone cluster by Spark's own protocol: starts, kills and watches drivers there.

`spark-submit --deploy-mode cluster` refuses Python, and the REST server of a master speaks in the clear; but a master
starts any command as a driver on one of its workers. Run as `python -m penstock.engine.jvm.standalone_master`, by
`penstock.supervision.cluster_drivers`: it reads the request as JSON, which may hold secrets, from its standard
input, and its last line is the answer as JSON. Its JVM ends with it. Tried on Spark 4.2.0.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import httpx

from penstock.engine.executor_wait import describe_free_resources
from penstock.engine.spark_security import security_conf
from penstock.java import jars, runtime
from penstock.settings import ExecutorResources

DEPLOY = "org.apache.spark.deploy"
MESSAGES = f"{DEPLOY}.DeployMessages$"
# A JVM of a few seconds. Netty and Spark's encryption reach into these packages.
JVM_OPTIONS = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx128m", "-Dlog4j2.level=ERROR",
    "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED",
)  # fmt: skip
# A master that hangs counts as unreachable.
RPC_TIMEOUTS = {
    "spark.rpc.askTimeout": "10s",
    "spark.rpc.lookupTimeout": "10s",
    "spark.network.timeout": "10s",
    "spark.network.auth.rpcTimeout": "10s",
    "spark.rpc.io.connectionTimeout": "10s",
    "spark.rpc.io.connectionCreationTimeout": "10s",
    "spark.rpc.numRetries": "1",
}
# A worker gives a driver ten seconds to end by itself before it kills it.
KILL_TIMEOUT_S = 20.0
# Of a driver that has ended, as its worker saw it; ERROR is also said of all drivers of a worker that is lost.
ENDED_STATES = ("FINISHED", "FAILED", "KILLED", "ERROR")


class MasterClient:
    """The leading master of a cluster. OSError if no leading master answers."""

    def __init__(self, jvm: Any, url: str) -> None:
        self._jvm = jvm
        conf = jvm.org.apache.spark.SparkConf(False)
        for key, value in (security_conf(url) | RPC_TIMEOUTS).items():
            conf.set(key, value)
        kind = jvm.org.apache.spark.SecurityManager
        manager = kind(conf, *(getattr(kind, f"$lessinit$greater$default${n}")() for n in (2, 3)))
        # It only asks, so that it listens on no port.
        self._env = jvm.org.apache.spark.rpc.RpcEnv.create("penstock", "127.0.0.1", 0, conf, manager, True)
        self._ref = self._leader(url)

    def _leader(self, url: str) -> Any:
        found = []
        for place in url.removeprefix("spark://").split(","):
            address = urlparse(f"spark://{place}")
            try:
                at = self._jvm.org.apache.spark.rpc.RpcAddress.apply(address.hostname, address.port)
                self._ref = self._env.setupEndpointRef(at, "Master")
                said = str(self.state().status())
            except Exception as e:  # whatever the JVM threw: that one does not lead
                found.append(f"{place} does not answer ({_cause(e)})")
                continue
            if said == "ALIVE":
                return self._ref
            found.append(f"{place} is {said.lower()}")
        raise OSError("; ".join(found))

    def _ask(self, message: Any, answer: str) -> Any:
        tag = self._jvm.scala.reflect.ClassTag.apply(self._jvm.java.lang.Class.forName(f"{MESSAGES}{answer}"))
        return self._ref.askSync(message, tag)

    def _message(self, name: str, *given: Any) -> Any:
        return getattr(self._jvm, f"{MESSAGES}{name}")(*given)

    def _seq(self, words: Sequence[str]) -> Any:
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(list(words)).toSeq()

    def state(self) -> Any:
        """The master's state."""
        message = getattr(getattr(self._jvm, f"{MESSAGES}RequestMasterState$"), "MODULE$")
        return self._ask(message, "MasterStateResponse")

    def submit(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Submit a driver, which starts when a worker has room for it; its id."""
        # It ends with its worker: otherwise nobody would own it.
        words = ["{{WORKER_URL}}", "{{USER_JAR}}", f"{DEPLOY}.PythonRunner", asked["file"], "", *asked["arguments"]]
        env = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(asked["environment"])
        command = getattr(self._jvm, f"{DEPLOY}.Command")(
            f"{DEPLOY}.worker.DriverWrapper",
            self._seq(words),
            env,
            self._seq(asked["class_path"]),
            self._seq([]),
            # As spark-submit and executors have them: Arrow reaches into Java.
            self._seq(
                [*self._jvm.org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptionArray(), *asked["options"]]
            ),
        )
        # What a worker fetches for its driver; any file will do.
        driver = getattr(self._jvm, f"{DEPLOY}.DriverDescription")(
            Path(asked["file"]).as_uri(), asked["memory"], asked["cores"], False, command, self._seq([])
        )
        said = self._ask(self._message("RequestSubmitDriver", driver), "SubmitDriverResponse")
        if not said.success():
            raise OSError(str(said.message()))
        return {"id": str(said.driverId().get())}

    def driver_status(self, name: str) -> dict[str, Any]:
        """What is known of a driver: `state` (see `master.DriverState`, MISSING if nothing), `why` of an error, and
        `free`, of one that has no place yet: what workers have left."""
        said = self._ask(self._message("RequestDriverStatus", name), "DriverStatusResponse")
        state, error = said.state(), said.exception()
        found = {
            "state": str(state.get()) if said.found() and state.isDefined() else "MISSING",
            "why": str(error.get().toString()) if error.isDefined() else "",
            "free": "",
        }
        if found["state"] == "SUBMITTED":
            found["free"] = self._free(name)
        return found

    def _free(self, name: str) -> str:
        """What workers have left, by their pages: what the master says of them has no such figures."""
        state = self.state()
        asked = next((d.desc() for d in state.activeDrivers() if str(d.id()) == name), None)
        cores, memory = (int(asked.cores()), int(asked.mem())) if asked else (1, 0)
        workers = []
        for worker in state.workers():
            if str(worker.state()) == "ALIVE":
                page = str(worker.webUiAddress())
                try:
                    workers.append(httpx.get(f"{page}/json/", timeout=5).json())
                except (httpx.HTTPError, ValueError):
                    return f"a worker whose page, {page}, does not say what is free"
        return describe_free_resources(
            workers, ExecutorResources(cores=cores, executor_cores=cores, memory=f"{memory}m" if memory else None)
        )

    def kill(self, name: str) -> dict[str, Any]:
        """Kill a driver, and wait up to `KILL_TIMEOUT_S` until it has ended; its status then."""
        self._ask(self._message("RequestKillDriver", name), "KillDriverResponse")
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while (found := self.driver_status(name))["state"] not in (
            *ENDED_STATES,
            "MISSING",
        ) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found


def _cause(error: Exception) -> str:
    thrown = getattr(error, "java_exception", None)
    cause = thrown
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    return str(error if cause is None else cause.toString()).splitlines()[0][:300]


@contextmanager
def _jvm() -> Iterator[Any]:
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    folder = jars.pyspark_folder() / "jars"
    port, token = launch_gateway(
        jarpath=str(next(folder.glob("py4j-*.jar"))),
        classpath=str(folder / "*"),
        javaopts=[*JVM_OPTIONS],
        java_path=runtime.find().command,
        # It ends with this process, however that does.
        die_on_exit=True,
        enable_auth=True,
        redirect_stderr=sys.stderr,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()


def handle_request(asked: dict[str, Any]) -> dict[str, Any]:
    """What comes of a request: `{"do": "submit" | "look" | "kill", "master": URL, ...}`, with the `id` of a driver or
    what `submit` takes. `{"error": text}` if nothing."""
    with _jvm() as jvm:
        try:
            master = MasterClient(jvm, asked["master"])
            match asked["do"]:
                case "submit":
                    return master.submit(asked)
                case "kill":
                    return master.kill(asked["id"])
                case _:
                    return master.driver_status(asked["id"])
        except OSError as e:
            return {"error": str(e)}
        except Exception as e:  # of the JVM's
            return {"error": _cause(e)}


def main() -> None:
    told = handle_request(json.load(sys.stdin))
    print(f"\n{json.dumps(told)}", flush=True)
    # The JVM ends when its standard input does, and is not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
