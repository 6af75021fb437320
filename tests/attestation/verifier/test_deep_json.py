"""Evidence nested deeper than the parser's stack is refused with a reason and does not end the process.

Where py-evm is loaded the interpreter's own limit is 100,000 levels; the process that plays the node here has it so.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

READERS = {
    "collateral": "from earnest.attestation.formats.collateral import canonical_collateral as read",
    "event log": "from earnest.attestation.verifier.event_log import read_event_log as read",
    "GPU evidence": "from earnest.attestation.verifier.nvidia import _entries as read",
    "GPU token": "from earnest.attestation.verifier.nvidia_nras import _detached as read",
    "policy": "from earnest.protocol.attestation import Policy; read = Policy.from_json",
    "policy document": "from earnest.attestation.policy_document import PolicyDocument as P; read = P.from_json",
    "update": (
        "from earnest.training.diloco.tensorfile import entries_of\n"
        "read = lambda text: entries_of(len(text).to_bytes(8, 'little') + text)"
    ),
    "kept collateral": (
        "import tempfile, pathlib; from earnest.attestation.collateral_cache import _cached\n"
        "def read(text):\n"
        "    path = pathlib.Path(tempfile.mkdtemp(), 'kept'); path.write_bytes(text)\n"
        "    if _cached(path, 0) == (None, 0): raise ValueError"
    ),
    "signed text in collateral": (
        "import json; from earnest.attestation.formats.collateral import COLLATERAL_FIELDS\n"
        "from earnest.attestation.collateral_cache import read_collateral\n"
        "read = lambda text: read_collateral(json.dumps(dict.fromkeys(COLLATERAL_FIELDS, text.decode())).encode())"
    ),
    "payload of a GPU token": (
        "import base64; from earnest.attestation.verifier.nvidia_nras import _token\n"
        "read = lambda text: _token('e30.' + base64.urlsafe_b64encode(text).decode().rstrip('=') + '.AA')"
    ),
}

NODE = """
import sys
{reader}
for text in (b"[" * 99_990, '["\\\\"",'.encode("utf-16-le") + b"[\\0" * 99_990 + b'"\\0'):
    sys.setrecursionlimit(100_000)
    try:
        read(text)
    except ValueError:
        continue
    raise SystemExit("read")
"""


@pytest.mark.parametrize("name", READERS)
def test_a_node_survives_evidence_that_is_nested_too_deep(name: str) -> None:
    code = NODE.format(reader=READERS[name])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-500:]
