"""Kubernetes: the pods of an Indexed Job, or of a JobSet."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pjrt.api.errors import InvalidArgumentError, UnavailableError
from pjrt.distributed.environments.environment import Environment, Place
from pjrt.distributed.environments.launch import COUNT

SCHEME = "https"
"""The protocol of the API server."""

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PORT = 55527
_SECONDS = 10.0


class KubernetesEnvironment(Environment):
    """A pod of an Indexed Job.

    Its host name is ``JOB-INDEX``, and a headless service is its subdomain, so the leader is at ``JOB-0.SUBDOMAIN``.
    The number of pods is in ``PJRT_PROCESS_COUNT``, or is asked from the API server, which the pod's service account
    must allow (``get`` of ``jobs``).

    Args:
        variables: the environment variables.
        host: the pod's whole host name; that of this host by default.
        account: the folder with the service account's token.
    """

    name = "kubernetes"

    def __init__(self, variables: Mapping[str, str], host: str | None = None, account: Path = _ACCOUNT) -> None:
        super().__init__(variables)
        self._host = host
        self._account = account

    def is_present(self) -> bool:
        """Whether this is a pod of an Indexed Job."""
        return "KUBERNETES_SERVICE_HOST" in self.variables and "JOB_COMPLETION_INDEX" in self.variables

    def place(self) -> Place:
        """Return the place of this pod."""
        index = self.number("JOB_COMPLETION_INDEX")
        short, _, domain = (self._host or socket.getfqdn()).partition(".")
        job = short.removesuffix(f"-{index}")
        if job == short or not domain:
            raise InvalidArgumentError(
                f"expected a pod with the host name JOB-{index} in a subdomain, found {short!r} in {domain!r}; create "
                "a headless service, and name it as 'subdomain' of the job's pod template"
            )
        count = self.number(COUNT) if COUNT in self.variables else self._ask_count(job)
        return Place(f"{job}-0.{domain}:{_PORT}", count, index)

    def _ask_count(self, job: str) -> int:
        try:
            namespace = (self._account / "namespace").read_text().strip()
            answer = self._ask(f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}")
            return int(answer["spec"]["completions"])
        except urllib.error.HTTPError as error:
            reason = f"the API server refused it ({error.code} {error.reason})"
        except (OSError, KeyError, TypeError, ValueError) as error:
            reason = str(error)
        raise UnavailableError(
            f"the number of pods of the job {job!r} could not be read: {reason}; set {COUNT} in the job's pod "
            "template, or let its service account 'get' 'jobs'"
        )

    def _ask(self, path: str) -> Any:
        host, port = self.variables["KUBERNETES_SERVICE_HOST"], self.variables.get("KUBERNETES_SERVICE_PORT", "443")
        token = (self._account / "token").read_text().strip()
        request = urllib.request.Request(
            f"{SCHEME}://{f'[{host}]' if ':' in host else host}:{port}{path}",
            headers={"Authorization": f"Bearer {token}"},
        )
        trust = ssl.create_default_context(cafile=str(self._account / "ca.crt")) if SCHEME == "https" else None
        with urllib.request.urlopen(request, timeout=_SECONDS, context=trust) as answer:
            return json.load(answer)
