"""TLS that programs begin in the middle of their connections, as STARTTLS has it (`controlled = true`).

usage: tls_controlled.py SIDESTEP SCRATCH [TEST ...]

Needs a network namespace of its own, as tls.py, which has the rules and certificates. The server is tls_starttls.c, the clients
are openssl, Python's smtplib and sockets; where a client of ours begins TLS, Python's ssl, which is OpenSSL, is the server. The last
line is "verified N". What must never happen: a byte in plain text behind the place where a program has asked for TLS, and bytes of
the peer from before that place which a program takes for protected.
"""

import errno
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time

import tls
from tls import PATIENCE, SECRET, Gateway, Recorder, command, free_port, inbound, outbound, path, under_sidestep, why

TESTS = []
CONTROLLED = "controlled = true"
SERVER = path("tls_starttls")
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tls_starttls.c")
BIG = bytes(range(256)) * 4000


def test(function):
    TESTS.append(function)
    return function


class Server:
    """tls_starttls under Sidestep."""

    def __init__(self, port, way="blocking"):
        self.process = under_sidestep(SERVER, str(port), way)
        assert self.process.stdout.readline() == b"listens\n", self.process.stderr.read()

    def said(self):
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, (self.process.returncode, out, err)
        return out.decode()


class Talk:
    """A peer with lines, which takes no byte behind them."""

    def __init__(self, connection):
        self.connection = connection
        self.connection.settimeout(PATIENCE)

    def line(self):
        line = b""
        while not line.endswith(b"\n"):
            byte = self.connection.recv(1)
            assert byte, (line, "the end")
            line += byte
        return line.decode().strip()

    def ask(self, line):
        self.connection.sendall(line.encode() + b"\r\n")
        answer = self.line()
        while answer[3:4] == "-":
            answer = self.line()
        return answer

    def echo(self, said):
        """The server takes all before it answers."""
        self.connection.sendall(b"ECHO %d\r\n" % len(said) + said)
        heard = b""
        while len(heard) < len(said):
            piece = self.connection.recv(1 << 16)
            assert piece, len(heard)
            heard += piece
        return heard


def plain(port):
    """A connection that has come to where STARTTLS may be said."""
    talk = Talk(socket.create_connection(("127.0.0.1", port), PATIENCE))
    assert talk.line().startswith("220 ")
    assert talk.ask("EHLO client") == "250 STARTTLS"
    return talk


def context_of_client(version=None):
    context = ssl.create_default_context(cafile=path("ca.pem"))
    if version:
        context.minimum_version = context.maximum_version = version
    return context


def protected(talk, version=None):
    return Talk(context_of_client(version).wrap_socket(talk.connection, server_hostname="a.example"))


# ---- servers ------------------------------------------------------------------------------------


@test
def openssl_begins_tls_with_a_plain_server():
    for version, shown in (("-tls1_2", "3.3"), ("-tls1_3", "3.4")):
        port = free_port()
        with Gateway(inbound(port, CONTROLLED)):
            server = Server(port)
            peer = subprocess.run(
                ("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-starttls", "smtp", "-CAfile", path("ca.pem"),
                 version, "-verify_return_error", "-verify_hostname", "a.example", "-crlf", "-quiet"),
                input=b"NOOP\nQUIT\n", capture_output=True, timeout=PATIENCE)
            assert f"250 asked 0 state 2 version {shown} rule 'in'".encode() in peer.stdout, peer
            assert b"221 bye" in peer.stdout, peer
            assert server.said() == "start 0 errno 0\nquit\n"


@test
def a_server_may_hold_its_connection_in_every_way():
    """And bytes go both ways afterwards."""
    for way in ("blocking", "level", "edge", "poll", "dup", "late", "fork", "exec", "given", "busy"):
        port = free_port()
        with Gateway(inbound(port, CONTROLLED)):
            server = Server(port, way)
            talk = plain(port)
            assert talk.ask("NOOP") == "250 asked 0 state 4 version 0.0 rule 'in'"
            assert talk.echo(BIG) == BIG, way
            assert talk.ask("STARTTLS") == "220 go ahead"
            if way == "busy":
                assert talk.line() == "220 once more"
            talk = protected(talk)
            assert talk.ask("NOOP") == "250 asked 0 state 2 version 3.4 rule 'in'", way
            assert talk.echo(BIG) == BIG, way
            assert talk.ask("QUIT") == "221 bye"
            said = server.said()
            assert "start 0 errno 0\n" in said and "quit\n" in said and "other" not in said, (way, said)
            if way == "fork":
                assert f"beside -1 errno {errno.ECONNRESET}\n" in said, said
            if way == "busy":
                assert said.startswith("busy 1\n"), said


@test
def a_server_that_is_never_asked_goes_on_in_plain_text():
    port = free_port()
    with Gateway(inbound(port, CONTROLLED)):
        server = Server(port)
        talk = plain(port)
        assert talk.echo(BIG) == BIG
        assert talk.ask("QUIT") == "221 bye"
        assert server.said() == "quit\n"


@test
def what_a_client_sends_ahead_is_refused():
    """STARTTLS injection: whoever is on the way puts a command behind STARTTLS, for the server to take as protected."""
    for ahead in (b"RSET injected\r\n", b"R"):
        port = free_port()
        with Gateway(inbound(port, CONTROLLED)):
            server = Server(port)
            talk = plain(port)
            talk.connection.sendall(b"STARTTLS\r\n" + ahead)
            assert talk.line() == "220 go ahead"
            try:
                assert talk.connection.recv(100) == b"", "it goes on"
            except ConnectionResetError:
                pass
            assert server.said() == f"start 0 errno 0\nend errno {errno.ECONNRESET}\n"
            assert "in plain text where TLS begins" in why(port)


@test
def a_client_that_goes_on_in_plain_text_is_not_served():
    port = free_port()
    with Gateway(inbound(port, CONTROLLED)):
        server = Server(port)
        talk = plain(port)
        assert talk.ask("STARTTLS") == "220 go ahead"
        talk.connection.sendall(b"NOOP\r\n")
        try:
            assert talk.connection.recv(100) == b"", "it goes on"
        except ConnectionResetError:
            pass
        assert server.said() == f"start 0 errno 0\nend errno {errno.ECONNRESET}\n"


# ---- clients ------------------------------------------------------------------------------------

# With smtplib, which has an SMTP client and would have TLS of its own.
SMTP = """
import smtplib, sys
with smtplib.SMTP("127.0.0.1", int(sys.argv[1]), timeout=15) as smtp:
    smtp.ehlo()
    assert smtp.has_extn("starttls")
    assert smtp.docmd("STARTTLS")[0] == 220
    smtp.sock.setsockopt(6, 0x53544C53, 1)
    # What it has read ahead is not to be believed.
    smtp.file = None
    smtp.ehlo()
    code, text = smtp.docmd("NOOP", sys.stdin.read())
    assert code == 250, text
print("done")
"""


class Starttls:
    """A server with TLS of its own, behind a beginning in plain text."""

    def __init__(self, version, ahead=b"", certificate="right"):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(path(certificate + ".pem"), path(certificate + ".key"))
        self.context.minimum_version = self.context.maximum_version = version
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.ahead, self.heard, self.error = ahead, [], None
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        connection, _ = self.listener.accept()
        talk = Talk(connection)
        try:
            connection.sendall(b"220 a.example\r\n")
            while True:
                line = talk.line()
                self.heard.append(line)
                if line.upper().startswith("EHLO"):
                    connection.sendall(b"250-a.example\r\n250 STARTTLS\r\n")
                elif line == "STARTTLS":
                    connection.sendall(b"220 go ahead\r\n" + self.ahead)
                    connection = self.context.wrap_socket(connection, server_side=True)
                    talk = Talk(connection)
                elif line.upper() == "QUIT":
                    connection.sendall(b"221 bye\r\n")
                    return
                else:
                    connection.sendall(b"250 ok\r\n")
        except (OSError, AssertionError) as error:
            self.error = error
        finally:
            connection.close()

    def end(self):
        self.listener.close()
        self.thread.join(PATIENCE)


def run_client(program, port, said=""):
    process = under_sidestep("python3", "-c", program, str(port))
    out, err = process.communicate(said.encode(), PATIENCE)
    return process.returncode, out.decode(), err.decode()


@test
def a_plain_client_begins_tls_with_an_openssl_server():
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        server, text = Starttls(version), "x" * 30_000
        with Gateway(outbound(server.port, CONTROLLED)):
            ended = run_client(SMTP, server.port, text)
            server.end()
            assert (ended[0], ended[1]) == (0, "done\n"), (ended, server.error)
            assert server.heard[1] == "STARTTLS" and server.heard[3] == "NOOP " + text, server.heard


# A client that takes no byte behind a line, and says what its calls have said.
CLIENT = """
import errno, socket, sys
def line():
    said = b""
    while not said.endswith(b"\\n"):
        byte = connection.recv(1)
        if not byte:
            break
        said += byte
def told(name, call):
    try:
        print(name, call())
    except OSError as error:
        print(name, errno.errorcode[error.errno])
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 15)
line()
connection.sendall(b"STARTTLS\\r\\n")
line()
BEFORE
told("start", lambda: connection.setsockopt(6, 0x53544C53, 1))
told("send", lambda: connection.send(sys.stdin.buffer.read()))
told("recv", lambda: connection.recv(100))
told("send", lambda: connection.send(b"not to be seen on the wire, either"))
"""


@test
def what_a_server_sends_ahead_is_refused():
    """Response injection: a client would take the answer to its first protected command from before."""
    server = Starttls(ssl.TLSVersion.TLSv1_3, ahead=b"250 injected\r\n")
    # It has come before the client begins TLS.
    wait = "while len(connection.recv(100, socket.MSG_PEEK)) < 14: pass"
    with Gateway(outbound(server.port, CONTROLLED)):
        ended = run_client(CLIENT.replace("BEFORE", wait), server.port, SECRET.decode())
        server.end()
        assert "recv ECONNRESET" in ended[1], ended
        assert server.heard == ["STARTTLS"], server.heard
        assert "in plain text where TLS begins" in why(server.port)


@test
def a_server_that_is_not_who_it_should_be_gets_nothing():
    server = Starttls(ssl.TLSVersion.TLSv1_3)
    with Gateway(outbound(server.port, CONTROLLED, name="b.example")):
        ended = run_client(CLIENT.replace("BEFORE", ""), server.port, SECRET.decode())
        server.end()
        assert ended[1].startswith("start None\n") and "recv ECONNRESET" in ended[1], ended
        assert server.heard == ["STARTTLS"] and "bad_certificate" in why(server.port), server.heard


@test
def without_a_gateway_plain_text_ends_where_tls_should_begin():
    recorder = Recorder(b"220 go ahead\r\n")
    with open(tls.CONFIG, "w") as file:
        file.write(outbound(recorder.port, CONTROLLED))
    program = CLIENT.replace("line()\nconnection.sendall", "connection.sendall", 1).replace("BEFORE", "")
    ended = run_client(program, recorder.port, SECRET.decode())
    # A reset is told once, as by TCP.
    said = ["start ECONNREFUSED", "send ECONNRESET", "recv b''", "send EPIPE"]
    assert ended[1].splitlines() == said, ended
    assert "there is no gateway" in ended[2], ended
    assert recorder.verdict() == b"STARTTLS\r\n", recorder.heard


@test
def a_loop_is_told_that_tls_cannot_begin():
    recorder = Recorder(b"220 go ahead\r\n")
    with open(tls.CONFIG, "w") as file:
        file.write(outbound(recorder.port, CONTROLLED))
    program = CLIENT.replace("line()\nconnection.sendall", "connection.sendall", 1).replace("BEFORE", """
import select
poll = select.epoll()
poll.register(connection, select.EPOLLIN)
""") + "print(poll.poll(10) != [])\n"
    program = program.replace('told("send"', '0 and told("send"').replace('told("recv"', '0 and told("recv"')
    ended = run_client(program, recorder.port)
    assert ended[1].splitlines() == ["start ECONNREFUSED", "True"], ended
    assert recorder.verdict() == b"STARTTLS\r\n", recorder.heard


# What was written before TLS waits for a peer that does not read, and goes all the same, in plain text and in order.
FULL = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 15)
connection.setblocking(False)
sent = 0
try:
    while True:
        sent += connection.send(b"plain " * 10_000)
except BlockingIOError:
    pass
connection.setblocking(True)
connection.setsockopt(6, 0x53544C53, 1)
print(sent, flush=True)
connection.sendall(b"protected")
connection.shutdown(socket.SHUT_WR)
print(connection.recv(100))
"""


@test
def what_was_written_before_goes_before():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path("right.pem"), path("right.key"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with Gateway(outbound(port, CONTROLLED)):
            program = under_sidestep("python3", "-c", FULL, str(port))
            connection, _ = listener.accept()
            connection.settimeout(PATIENCE)
            count = int(program.stdout.readline())
            heard = b""
            while len(heard) < count:
                piece = connection.recv(min(1 << 16, count - len(heard)))
                assert piece, len(heard)
                heard += piece
            assert heard == (b"plain " * (count // 6 + 1))[:count]
            with context.wrap_socket(connection, server_side=True) as peer:
                assert peer.recv(100) == b"protected"
                peer.sendall(b"heard")
                out, err = program.communicate(timeout=PATIENCE)
                assert out == b"b'heard'\n", (out, err)


# ---- both ---------------------------------------------------------------------------------------


@test
def two_plain_programs_begin_tls_with_each_other():
    """A relay between them keeps what goes over the wire."""
    near, far = free_port(), free_port()
    wire = [b"", b""]

    def pass_on(source, sink, at):
        try:
            while piece := source.recv(1 << 16):
                wire[at] += piece
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    with socket.create_server(("127.0.0.1", near)) as listener, \
            Gateway(outbound(near, CONTROLLED) + inbound(far, CONTROLLED)):
        server = Server(far)

        def relay():
            one, _ = listener.accept()
            other = socket.create_connection(("127.0.0.1", far))
            threading.Thread(target=pass_on, args=(other, one, 1), daemon=True).start()
            pass_on(one, other, 0)

        threading.Thread(target=relay, daemon=True).start()
        ended = run_client(SMTP, near, SECRET.decode())
        assert (ended[0], ended[1]) == (0, "done\n"), ended
        assert server.said() == "start 0 errno 0\nquit\n"
        assert re.match(rb"(?i)ehlo [^\r]*\r\nSTARTTLS\r\n\x16\x03", wire[0]), wire[0][:100]
        assert wire[1].count(b"220 go ahead\r\n\x16\x03") == 1, wire[1][:100]
        assert SECRET.strip() not in wire[0] and b"NOOP" not in wire[0] and b"221" not in wire[1]


# ---- what the call says, and what is shown --------------------------------------------------------

ANSWERS = """
import errno, socket, sys
def start(s, value=1):
    try:
        s.setsockopt(6, 0x53544C53, value)
        return 0
    except OSError as error:
        return errno.errorcode[error.errno]
controlled, always, free = (int(it) for it in sys.argv[1:])
with socket.socket() as s:
    print("unconnected", start(s))
with socket.socket(type=socket.SOCK_DGRAM) as s:
    print("udp", start(s))
with socket.create_connection(("127.0.0.1", free)) as s:
    print("no rule", start(s))
with socket.create_connection(("127.0.0.1", always)) as s:
    print("always", start(s))
with socket.create_connection(("127.0.0.1", controlled)) as s:
    print("wrong", start(s, 2), start(s, b"x"))
    print("first", start(s))
    print("second", start(s))
"""


@test
def what_the_call_says():
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [str(it.getsockname()[1]) for it in listeners]
    with Gateway(outbound(ports[0], CONTROLLED) + outbound(ports[1]).replace("outbound.out", "outbound.always")):
        program = under_sidestep("python3", "-c", ANSWERS, *ports)
        out, err = program.communicate(timeout=PATIENCE)
        assert out.decode().splitlines() == [
            "unconnected ENOTCONN", "udp ENOPROTOOPT", "no rule EPERM", "always EALREADY", "wrong EINVAL EINVAL",
            "first 0", "second EALREADY"], (out, err)
    without = subprocess.run(("python3", "-c", ANSWERS, *ports), capture_output=True, timeout=PATIENCE)
    assert without.stdout.count(b"ENOPROTOOPT") + without.stdout.count(b"EINVAL") == 8, without
    for listener in listeners:
        listener.close()


@test
def it_is_seen_when_tls_begins():
    port = free_port()

    def shown():
        return [it for it in json.loads(command("ss", "--json").stdout)
                if it["local"] == f"127.0.0.1:{port}" and it["mode"] != "LISTEN"]

    with Gateway(inbound(port, CONTROLLED)):
        server = Server(port)
        talk = plain(port)
        before = shown()
        assert ["the program has not begun TLS" in it["reason"]["text"] for it in before] == [True], before
        told = command("why", f":{port}").stdout
        assert "the program has not begun TLS" in told and "controlled" in told, told
        assert "when asked" in command("tls").stdout
        talk.ask("STARTTLS")
        talk = protected(talk)
        talk.ask("NOOP")
        after = shown()
        assert [it["protection"] for it in after if it["mode"] == "TLS"] == ["TLS 1.3 TLS_AES_256_GCM_SHA384 in"], after
        talk.ask("QUIT")
        server.said()


@test
def config_check_tells_what_does_not_go_together():
    for more, words in (("enforce = true", "enforce lets none of it leave"),
                        ('within_host = "memory"', 'controlled goes with within_host = "tls" alone')):
        with open(tls.CONFIG, "w") as file:
            file.write(inbound(8443, f"{CONTROLLED}\n{more}"))
        checked = command("config", "check")
        assert checked.returncode != 0 and words in checked.stdout + checked.stderr, checked


def main():
    tls.authority("ca")
    tls.issue("right", "ca", "DNS:a.example")
    words = ("gcc", "-Wall", "-Werror", "-pthread", "-I", tls.INCLUDE, "-o", SERVER, SOURCE)
    subprocess.run(words, check=True, timeout=PATIENCE)
    chosen, verified = sys.argv[3:], 0
    for function in TESTS:
        if not chosen or function.__name__ in chosen:
            begin = time.monotonic()
            function()
            verified += 1
            print(f"{function.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
    print(f"verified {verified}")


if __name__ == "__main__":
    main()
