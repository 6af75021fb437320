"""`earnest deploy`: plans, executes and verifies a deployment of the contracts."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

from cyclopts import Parameter

from earnest.cli.app import make_group
from earnest.cli.exits import Exit, UsageError
from earnest.cli.flags import AccountFlags, ChainFlags, SendFlags
from earnest.cli.output import Answer, table
from earnest.cli.session import Session, coins
from earnest.cli.transactions import consent
from earnest.client.storage.journal import Journal
from earnest.deploy.execute import run_plan, unfinished_plan
from earnest.deploy.manifest import Manifest, load_manifest
from earnest.deploy.plan import SINK, DeploymentPlan, make_plan
from earnest.deploy.probe import has_p256
from earnest.deploy.verify import ContractCheck
from earnest.deploy.verify import verify as verify_deployment

app = make_group("deploy")
ACCOUNT, SEND, CHAIN = AccountFlags(), SendFlags(), ChainFlags()


@app.command
def plan(*, token: str | None = None, sink: str = SINK, flags: AccountFlags = ACCOUNT) -> Answer:
    """Show the plan of a deployment: addresses, constructor arguments, code hashes and gas. Sends nothing.

    Example: earnest deploy plan --network sepolia --token 0x000000000000000000000000000000000000dEaD

    Parameters
    ----------
    token
        Address of the ERC-20 for the vault (default on local chains: a new play token).
    sink
        Address that receives burned tokens. It cannot be changed later.
    """
    with Session(flags) as session:
        return _planned(session, _plan(session, token, sink))


@app.command
def run(
    *,
    token: str | None = None,
    sink: str = SINK,
    again: Annotated[bool, Parameter(negative="")] = False,
    flags: SendFlags = SEND,
) -> Answer:
    """Deploy the contracts. If it is interrupted, the same command continues where it stopped.

    Example: earnest deploy run --network devnet --keystore devnet-keys/account-0.json --password-file password.txt

    Parameters
    ----------
    token
        Address of the ERC-20 for the vault (default on local chains: a new play token).
    sink
        Address that receives burned tokens. It cannot be changed later.
    again
        Deploy again even if the manifest has a finished deployment. The manifest keeps the old one as history.
    """
    from earnest.client.chain.outbox import Outbox

    with Session(flags) as session:
        if not again and _finished(session):
            session.notice("the deployment is finished: nothing to do (--again deploys again)")
            return _deployed(session, session.manifest)
        made = _plan(session, token, sink)
        if flags.dry_run:
            return _planned(session, made)
        cost = f"at most {made.gas:,} gas, {coins(made.gas * session.chain.fees().max_fee)}"
        consent(session, [f"deploy {len(made.contracts)} contracts from {made.deployer}", f"  {cost}"])
        signer = session.signer
        session.hold_key()
        if _restarted(session):
            session.notice(f"{session.own_manifest} was of a local chain that is gone; it is replaced")
            session.own_manifest.unlink()
        birth = session.chain.block(0).hash.hex()
        folder = session.settings.data_dir / f"{session.network.name}-deploy-{birth[:8]}" / made.deployer
        with Journal(folder / "journal.sqlite", made.deployer, f"{made.chain_id}/{birth}") as journal:
            environment = session.environment
            outbox = Outbox(
                session.chain, signer, journal, clock=environment.monotonic, sleep=environment.sleep
            )
            manifest = run_plan(
                made,
                session.chain,
                outbox,
                journal,
                session.own_manifest,
                network=session.network.name,
                git=f"earnest {version('earnest')}",
                progress=lambda planned: session.notice(f"deploying {planned.name} to {planned.address} ..."),
            )
        return _deployed(session, manifest)


@app.command
def verify(*, flags: ChainFlags = CHAIN) -> Answer:
    """Check that code, constructor arguments and addresses on chain are the deployment's. Exit code 1 if a check fails.

    Example: earnest deploy verify --network devnet
    """
    with Session(flags) as session:
        checks = verify_deployment(session.manifest, session.chain, session.at)
        failed = [check for check in checks if not check.ok]
        document = {
            "ok": not failed,
            "block": session.at.number,
            "checks": [_check(check) for check in checks],
        }
        rows = [(c.contract, c.name, c.expected, c.actual) for c in failed]
        shown: list[Any] = [
            f"{len(checks) - len(failed)} of {len(checks)} checks pass at block {session.at.number}"
        ]
        if failed:
            shown.append(table("Failed", ("contract", "check", "expected", "actual"), rows))
        return Answer(document, shown, Exit.REFUSED if failed else Exit.OK)


def _check(check: ContractCheck) -> dict[str, Any]:
    return {
        "contract": check.contract,
        "question": check.name,
        "expected": check.expected,
        "found": check.actual,
        "ok": check.ok,
    }


def _plan(session: Session, token: str | None, sink: str) -> DeploymentPlan:
    """Returns the plan of the unfinished deployment; if there is none, a new one from the account's next nonce."""
    path = session.own_manifest
    if not _restarted(session) and (unfinished := unfinished_plan(path)) is not None:
        return unfinished
    if token is None and not session.network.local and session.network.token is None:
        raise UsageError(
            f"{session.network.name} is not local: its vault needs a token",
            "give the address of an ERC-20: --token",
        )
    nonce = session.chain.next_nonce(session.account)
    token = session.network.token if token is None else session.address(token)
    return make_plan(session.chain.chain_id, session.account, nonce, token, session.address(sink))


def _deployed(session: Session, manifest: Manifest) -> Answer:
    records = manifest.current.contracts
    contracts = {name: record.address for name, record in records.items()}
    document = {
        "network": session.network.name,
        "chain_id": manifest.chain_id,
        "deployer": records["TrainingRuns"].deployer,
        "token": manifest.address("Token"),
        "contracts": contracts,
        "manifest": str(session.own_manifest),
        "p256_precompile": has_p256(session.chain, session.at),
    }
    shown = table("Deployed", ("contract", "address"), list(contracts.items()))
    attestation = _attestation_text(document["p256_precompile"])
    return Answer(document, [shown, f"Manifest: {session.own_manifest}", attestation])


def _attestation_text(able: bool) -> str:
    """Says, as a sentence, if the chain supports attested runs."""
    if able:
        return "The chain has the P-256 precompile: enclave keys can be registered."
    return "The chain has no P-256 precompile: enclave keys cannot be registered here, everything else works."


def _finished(session: Session) -> bool:
    """Returns True if the manifest's deployment is complete and on chain. Another would replace it."""
    path = session.own_manifest
    return path.exists() and load_manifest(path).current.complete and not _restarted(session)


def _restarted(session: Session) -> bool:
    """Returns True if the manifest is of a local chain that was restarted: the contracts are not on the chain."""
    path = session.own_manifest
    if not session.network.local or not path.exists():
        return False
    contracts = load_manifest(path).current.contracts.values()
    first = min(contracts, key=lambda contract: contract.nonce)
    if first.runtime_hash is not None:
        return not session.chain.code(first.address, session.chain.head())
    return session.chain.next_nonce(first.deployer) < first.nonce


def _planned(session: Session, made: DeploymentPlan) -> Answer:
    fees = session.chain.fees()
    cost = made.gas * fees.max_fee
    balance = session.chain.balance(made.deployer, session.at)
    able = has_p256(session.chain, session.at)
    document = {
        "dry_run": True,
        "network": session.network.name,
        "chain_id": made.chain_id,
        "deployer": made.deployer,
        "first_nonce": made.first_nonce,
        "token": made.token,
        "sink": made.sink,
        "gas": made.gas,
        "cost_wei": str(cost),
        "balance_wei": str(balance),
        "balance_after_wei": str(balance - cost),
        "p256_precompile": able,
        "contracts": [
            {
                "name": planned.name,
                "address": planned.address,
                "nonce": planned.nonce,
                "args": dict(planned.args),
                "gas": planned.gas,
                "initcode_hash": planned.initcode_hash,
                "initcode_bytes": len(planned.initcode),
            }
            for planned in made.contracts
        ],
    }
    rows = [(planned.name, planned.address, planned.nonce, planned.gas) for planned in made.contracts]
    return Answer(
        document,
        [
            table(f"Plan of {made.deployer}", ("contract", "address", "nonce", "gas at most"), rows),
            f"token {made.token}, burned tokens go to {made.sink}",
            f"At most {made.gas:,} gas, {coins(cost)}. Nothing was sent. To deploy: `earnest deploy run`",
            _attestation_text(able),
        ],
    )
