"""HTTP servers that misbehave, one behaviour each: plain sockets, so that nothing is corrected on the way."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Answer = Callable[[socket.socket, str], None]
"""Gets a connection and the request's head; whatever it sends is the answer."""


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """Answers every connection on a free local port until the block ends; yields its base URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.is_set():
            with suppress(OSError):
                connection, _ = listener.accept()
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

    def handle(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(5)
            answer(connection, connection.recv(65536).decode("latin-1"))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stopped.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def reply(body: bytes, status: str = "200 OK", length: int | None = None, headers: str = "") -> Answer:
    """One whole answer; `length` may lie."""
    announced = len(body) if length is None else length

    def answer(connection: socket.socket, _: str) -> None:
        connection.sendall(
            f"HTTP/1.1 {status}\r\nContent-Length: {announced}\r\n{headers}\r\n".encode() + body
        )

    return answer


def endless(
    head: str = "HTTP/1.1 200 OK\r\n\r\n", piece: bytes = b"x" * 65536, limit: int = 10_000
) -> Answer:
    """A head, then the same piece until the reader hangs up (or 640 MB, so that a failing test ends)."""

    def answer(connection: socket.socket, _: str) -> None:
        connection.sendall(head.encode())
        for _piece in range(limit):
            connection.sendall(piece)

    return answer


def drip(total: int, stopped: threading.Event) -> Answer:
    """A correct head, then a byte every 50 ms."""

    def answer(connection: socket.socket, _: str) -> None:
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n".encode())
        while not stopped.wait(0.05):
            connection.sendall(b"x")

    return answer
