"""Replicas of a served model under Ray Serve: Ray chooses the replica, and each batches its requests by itself.

pip install "pjrt[xla,http]" "ray[serve]"
python ray_serve.py classifier.pjrt

Then ask http://127.0.0.1:8000/v2/models/classifier, as if `pjrt serve-model` were there.
"""

import sys
from pathlib import Path

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

import pjrt

_OWN_HEADERS = {"content-length", "transfer-encoding", "connection", "host", "date", "server"}
"""The headers of a response that the server here writes itself."""


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 1}, max_ongoing_requests=64)
class Replica:
    """A model on a device of this replica's process, which is ready when all sizes are compiled."""

    def __init__(self, file, device):
        self.model = pjrt.load_model(file, device)
        self.server = pjrt.models.ModelServer(self.model, Path(file).stem, device=device)
        self.server.wait_until_ready()
        self.session = None

    async def __call__(self, request: Request) -> Response:
        self.session = self.session or aiohttp.ClientSession(auto_decompress=False)
        given = {name: value for name, value in request.headers.items() if name.lower() not in _OWN_HEADERS}
        address = self.server.url + request.url.path
        async with self.session.request(request.method, address, data=await request.body(), headers=given) as answer:
            headers = {name: value for name, value in answer.headers.items() if name.lower() not in _OWN_HEADERS}
            return Response(await answer.read(), answer.status, headers)

    async def check_health(self):
        """Tell Ray, which asks now and then, whether the device still answers; it replaces a replica that fails."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.server.url}/v2/health/ready") as answer:
            answer.raise_for_status()

    async def __del__(self):
        if self.session is not None:
            await self.session.close()
        self.server.close()
        self.model.close()


if __name__ == "__main__":
    file = str(Path(sys.argv[1]).resolve())  # replicas have another folder
    serve.run(Replica.bind(file, "cpu"), route_prefix="/", blocking=True)
