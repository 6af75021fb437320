"""HTTP to an endpoint that may be hostile: an answer has a largest size and a deepest nesting."""

from __future__ import annotations

from web3 import HTTPProvider
from web3.types import RPCEndpoint, RPCResponse

from earnest.base.strict_json import check_depth

MAX_BYTES = 64 << 20
PIECE = 1 << 16


class BoundedProvider(HTTPProvider):
    """web3's HTTP provider, which reads no more than `MAX_BYTES` and parses nothing that is nested too deep.

    Raises ValueError for an answer beyond either.
    """

    def _make_request(self, method: RPCEndpoint, request_data: bytes) -> bytes:
        options = {**self.get_request_kwargs(), "stream": True}
        session = self._request_session_manager
        uri = self.endpoint_uri
        assert uri is not None, "an HTTP provider has a URI"
        with session.get_response_from_post_request(uri, data=request_data, **options) as response:
            response.raise_for_status()
            received = bytearray()
            for piece in response.iter_content(PIECE):
                received += piece
                if len(received) > MAX_BYTES:
                    raise ValueError(f"an answer of more than {MAX_BYTES} bytes")
            return bytes(received)

    @staticmethod
    def decode_rpc_response(raw_response: bytes) -> RPCResponse:
        check_depth(raw_response)
        return HTTPProvider.decode_rpc_response(raw_response)
