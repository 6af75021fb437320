"""Quotes through the kernel's report interface, against an imitation that behaves as Linux does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from earnest.attestation.prover.attester import AttesterError, NoTeeError
from earnest.attestation.prover.simulated import SimulatedAttester
from earnest.attestation.prover.tdx_guest import TdxGuestAttester
from earnest.attestation.roots import INTEL_ROOT_ID
from tests.attestation.prover.kernel import Kernel

REPORT_DATA = bytes(range(64))


def sign(report_data: bytes) -> bytes:
    return SimulatedAttester().quote(report_data).quote


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path / "report", sign)


def attester(kernel: Kernel) -> TdxGuestAttester:
    return TdxGuestAttester(os.urandom, kernel.folder)


def test_the_quote_is_over_the_report_data_and_the_request_is_gone(kernel: Kernel) -> None:
    guest = attester(kernel)
    assert guest.quote(REPORT_DATA).quote == sign(REPORT_DATA)
    assert kernel.requests == {}
    assert list(kernel.base.iterdir()) == []
    assert (guest.kind, guest.root_id) == ("tdx-guest", INTEL_ROOT_ID)


def test_every_request_has_a_folder_of_its_own(kernel: Kernel) -> None:
    guest = attester(kernel)
    guest.quote(REPORT_DATA)
    guest.quote(bytes(64))
    assert len(set(kernel.made)) == 2


def test_a_request_that_somebody_else_wrote_to_is_asked_again(kernel: Kernel) -> None:
    def once(kernel: Kernel, request: str) -> None:
        kernel.meddle = lambda kernel, request: None
        kernel.write(request, "inblob", b"\x66" * 64)

    kernel.meddle = once
    assert attester(kernel).quote(REPORT_DATA).quote == sign(REPORT_DATA)
    assert len(kernel.made) == 2


def test_a_request_that_is_always_disturbed_ends_in_an_error(kernel: Kernel) -> None:
    kernel.meddle = lambda kernel, request: kernel.write(request, "inblob", b"\x66" * 64)
    with pytest.raises(AttesterError, match="another process writes"):
        attester(kernel).quote(REPORT_DATA)
    assert kernel.requests == {}


@pytest.mark.parametrize("number", [errno.EBUSY, errno.ETIMEDOUT, errno.EINTR])
def test_a_busy_quoting_service_is_asked_again(kernel: Kernel, number: int) -> None:
    kernel.failures = [number, number]
    assert attester(kernel).quote(REPORT_DATA).quote == sign(REPORT_DATA)
    kernel.failures = [number] * 3
    with pytest.raises(AttesterError, match="3 attempts"):
        attester(kernel).quote(REPORT_DATA)


def test_a_failing_quoting_service_is_an_error(kernel: Kernel) -> None:
    kernel.failures = [errno.EIO]
    with pytest.raises(AttesterError, match="EIO"):
        attester(kernel).quote(REPORT_DATA)
    assert kernel.requests == {}


def test_another_tee_is_not_taken_for_tdx(kernel: Kernel) -> None:
    kernel.provider = "sev_guest"
    with pytest.raises(NoTeeError, match="sev_guest"):
        attester(kernel).quote(REPORT_DATA)


def test_a_machine_without_the_interface_is_an_error(tmp_path: Path, kernel: Kernel) -> None:
    with pytest.raises(NoTeeError, match="No such file"):
        TdxGuestAttester(os.urandom, tmp_path / "no" / "configfs").quote(REPORT_DATA)
    kernel.driver = False
    with pytest.raises(NoTeeError, match="no TEE driver"):
        attester(kernel).quote(REPORT_DATA)


def test_a_quote_over_other_report_data_is_not_passed_on(kernel: Kernel) -> None:
    kernel.sign = lambda report_data: sign(bytes(64))
    with pytest.raises(AttesterError, match="other report data"):
        attester(kernel).quote(REPORT_DATA)


@pytest.mark.parametrize("quote", [b"", REPORT_DATA * 300])
def test_a_quote_of_an_odd_size_is_not_passed_on(kernel: Kernel, quote: bytes) -> None:
    kernel.sign = lambda report_data: quote
    with pytest.raises(AttesterError, match="plausible"):
        attester(kernel).quote(REPORT_DATA)


@pytest.mark.parametrize("size", [0, 32, 63, 65])
def test_report_data_of_another_size_is_never_sent(kernel: Kernel, size: int) -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        attester(kernel).quote(bytes(size))
    assert kernel.made == []


@pytest.mark.parametrize("generation", ["", "one", "-1", "0x1", "9" * 5000, "\xb2"])
def test_a_generation_that_is_no_number_is_an_error(kernel: Kernel, generation: str) -> None:
    kernel.generation = generation
    with pytest.raises(AttesterError, match="not a number"):
        attester(kernel).quote(REPORT_DATA)
    assert kernel.requests == {}
