"""TLS by rules: programs without TLS, and openssl as the peer that has it.

usage: tls.py SIDESTEP SCRATCH

Needs a network namespace of its own, because a gateway is the only one of its. Each test says what came of it;
the last line is "verified N". What must never happen is that a byte of a program's goes out in plain text: where a
connection is refused, the peer is a recorder that keeps every byte it gets.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time

SIDESTEP, SCRATCH = sys.argv[1], os.path.abspath(sys.argv[2])
CONFIG = os.path.join(SCRATCH, "tls.toml")
SECRET = b"not to be seen on the wire "
PATIENCE = 20


def path(name):
    return os.path.join(SCRATCH, name)


# ---- certificates -------------------------------------------------------------------------------


def openssl(*words):
    subprocess.run(("openssl", *words), check=True, capture_output=True, timeout=PATIENCE)


def authority(name):
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
            "-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE",
            "-keyout", path(f"{name}.key"), "-out", path(f"{name}.pem"))


def issue(name, by, names, *when):
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", path(f"{name}.key"), "-out", path(f"{name}.csr"))
    with open(path(f"{name}.ext"), "w") as file:
        file.write(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
    openssl("x509", "-req", "-in", path(f"{name}.csr"), "-CA", path(f"{by}.pem"), "-CAkey", path(f"{by}.key"),
            "-CAcreateserial", "-extfile", path(f"{name}.ext"), "-out", path(f"{name}.pem"),
            *(when or ("-days", "30")))
    os.chmod(path(f"{name}.key"), 0o600)


# ---- programs -----------------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def under_sidestep(*words, group=None):
    environment = {**os.environ, "SIDESTEP_CONFIG": CONFIG}
    return subprocess.Popen((SIDESTEP, "run", *words), env=environment, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=group and group.enter)


def command(*words):
    environment = {**os.environ, "SIDESTEP_CONFIG": CONFIG}
    return subprocess.run((SIDESTEP, *words), env=environment, capture_output=True, text=True, timeout=PATIENCE)


class Gateway:
    """With these rules."""

    def __init__(self, rules):
        with open(CONFIG, "w") as file:
            file.write(rules)
        words = (SIDESTEP, "gateway", "--config", CONFIG)
        self.log = open(path("gateway.log"), "w")
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log)
        end = time.monotonic() + PATIENCE
        while command("gateway", "--status").returncode != 0:
            assert time.monotonic() < end and self.process.poll() is None, open(path("gateway.log")).read()
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(PATIENCE)


class Group:
    """A control group of version 2, which its programs have left when it ends."""

    def __init__(self, name, above=None):
        mounts = (line.split() for line in open("/proc/mounts"))
        above = above or next(fields[1] for fields in mounts if fields[2] == "cgroup2")
        self.at = os.path.join(above, name)
        os.mkdir(self.at)

    def enter(self):
        with open(os.path.join(self.at, "cgroup.procs"), "w") as file:
            file.write("0")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return os.rmdir(self.at)
            except OSError:
                assert time.monotonic() < end, open(os.path.join(self.at, "cgroup.procs")).read()
                time.sleep(0.02)


class Agent:
    """For the programs of a group."""

    def __init__(self, group):
        self.log = path("agent.log")
        if os.path.exists(self.log):
            os.remove(self.log)
        self.process = subprocess.Popen(
            (SIDESTEP, "agent", "--cgroup", group.at, "--socket", path("agent.sock"), "--config", CONFIG,
             "--log", f"info:{self.log}"), stdout=subprocess.DEVNULL)

    def await_words(self, words):
        end = time.monotonic() + PATIENCE
        while not os.path.exists(self.log) or words not in open(self.log).read():
            assert time.monotonic() < end and self.process.poll() is None, (words, open(self.log).read())
            time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(PATIENCE)


# A client that sends what it is given, says that it sends no more, and prints all it receives.
CLIENT = """
import socket, sys
try:
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 15)
    name = connection.getpeername()
    assert name == ("127.0.0.1", int(sys.argv[1])), name
    connection.sendall(sys.stdin.buffer.read())
    connection.shutdown(socket.SHUT_WR)
    while piece := connection.recv(65536):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
except OSError as error:
    sys.exit(error.errno)
"""

# A server of one connection that sends back what it receives, and prints it.
SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    print("listens", flush=True)
    connection, peer = listener.accept()
    try:
        while piece := connection.recv(65536):
            assert connection.getpeername() == peer
            connection.sendall(piece)
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except OSError as error:
        sys.exit(error.errno)
"""


def client(port, said, program=CLIENT, group=None):
    program = under_sidestep("python3", "-c", program, str(port), group=group)
    out, err = program.communicate(said, PATIENCE)
    assert program.returncode < 128 and b"Traceback" not in err, err
    return program.returncode, out


def server(port, group=None):
    program = under_sidestep("python3", "-c", SERVER, str(port), group=group)
    assert program.stdout.readline() == b"listens\n", program.stderr.read()
    return program


def exchange(port, said, group=None):
    """A client and a server, plain programs both: each hears all that the other has said."""
    program = server(port, group)
    held = threading.Thread(target=lambda: setattr(held, "out", program.communicate(timeout=PATIENCE)[0]))
    held.start()
    status, heard = client(port, said, group=group)
    held.join(PATIENCE)
    assert (status, heard == said, held.out == said) == (0, True, True), (status, len(heard))


class OpenSsl:
    """`openssl s_server` that answers each line with the same line, reversed."""

    def __init__(self, port, certificate, *words):
        self.process = subprocess.Popen(
            ("openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-cert", path(f"{certificate}.pem"),
             "-key", path(f"{certificate}.key"), "-rev", *words),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        await_listener(port)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(PATIENCE)


def await_listener(port):
    end = time.monotonic() + PATIENCE
    wanted = f"0100007F:{port:04X} 00000000:0000 0A"
    while wanted not in open("/proc/net/tcp").read():
        assert time.monotonic() < end, f"no listener at {port}"
        time.sleep(0.02)


class Recorder:
    """A TCP server that keeps every byte of its first connection, and does with it what it is told."""

    def __init__(self, answer=b"", resets=False):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.heard, self.answer, self.resets = b"", answer, resets
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        connection, self.client = self.listener.accept()
        connection.settimeout(PATIENCE)
        try:
            self.heard += connection.recv(65536)
            connection.sendall(self.answer)
            if not self.resets:
                while piece := connection.recv(65536):
                    self.heard += piece
        except OSError:
            pass
        connection.close()

    def verdict(self):
        """Not a byte of the program's was heard."""
        self.listener.close()
        self.thread.join(PATIENCE)
        assert SECRET.strip() not in self.heard, "in plain text"
        return self.heard


def outbound(port, more="", name="a.example"):
    return (f'[tls.outbound.out]\nports = [{port}]\nserver_name = "{name}"\n'
            f'trust = "{path("ca.pem")}"\n{more}\n')


def inbound(port, more="", certificate="right"):
    return (f'[tls.inbound.in]\nports = [{port}]\ncertificate = "{path(certificate + ".pem")}"\n'
            f'key = "{path(certificate + ".key")}"\n{more}\n')


def why(port):
    told = command("why", f":{port}").stdout
    assert "not protected" in told, told
    return told


# ---- tests --------------------------------------------------------------------------------------

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def a_plain_client_and_an_openssl_server():
    for version in ("1.2", "1.3"):
        port = free_port()
        with Gateway(outbound(port, f'versions = ["{version}"]\nhalf_close = "hold"')):
            with OpenSsl(port, "right"):
                program = under_sidestep("python3", "-c", CLIENT.replace(
                    "connection.shutdown(socket.SHUT_WR)",
                    "print(connection.recv(999).decode(), end='', flush=True)"
                    "; input_ = open('/dev/stdin'); input_.close()"), str(port))
                program.stdin.write(b"abc def\n")
                program.stdin.close()
                assert program.stdout.readline() == b"fed cba\n"
                seen = [it for it in json.loads(command("ss", "--json").stdout) if it["mode"] == "TLS"]
                assert seen and seen[0]["protection"].startswith(f"TLS {version} TLS_"), seen
                assert seen[0]["protection"].endswith(" out"), seen
                assert seen[0]["peer"] == f"127.0.0.1:{port}", seen
                told = command("tls").stdout
                assert "outbound.out" in told, told
                program.kill()
                program.wait(PATIENCE)


@test
def a_plain_server_and_an_openssl_client():
    for version in ("-tls1_2", "-tls1_3"):
        port = free_port()
        with Gateway(inbound(port)):
            program = server(port)
            peer = subprocess.run(
                ("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", path("ca.pem"), version,
                 "-verify_return_error", "-servername", "a.example", "-quiet", "-no_ign_eof"),
                input=b"hello\n", capture_output=True, timeout=PATIENCE)
            out, err = program.communicate(timeout=PATIENCE)
            assert (program.returncode, out) == (0, b"hello\n"), (program.returncode, out, err, peer)


STATUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tls_status.c")
INCLUDE = os.path.join(os.path.dirname(STATUS), "..", "..", "include")


def told(line, *words):
    for it in words:
        assert it in line, (line, it)


@test
def a_program_can_ask_what_protects_its_connection():
    asks = path("tls_status")
    subprocess.run(("gcc", "-Wall", "-Werror", "-I", INCLUDE, "-o", asks, STATUS), check=True, timeout=PATIENCE)
    fingerprint = subprocess.run(("openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", path("right.pem")),
                                 capture_output=True, text=True, check=True).stdout.split("=")[1].strip()
    certificate = (f"sha256 {fingerprint.replace(':', '')} ", "subject 'CN=right'")
    plain, port, silent = Recorder(answer=b"x"), free_port(), Recorder()
    without = subprocess.run((asks, "client", str(plain.port)), capture_output=True, text=True, timeout=PATIENCE)
    assert without.stdout.splitlines()[:2] == ["errno 92"] * 2, (without, "ENOPROTOOPT")
    with Gateway(outbound(f"{port}, {silent.port}")), OpenSsl(port, "right"):
        plain = Recorder(answer=b"x")
        unprotected = under_sidestep(asks, "client", str(plain.port)).communicate(timeout=PATIENCE)[0].decode()
        for line in unprotected.splitlines()[:2]:
            told(line, "state 0 version 0.0 cipher 0000 rule '' ", "subject 'none'")
        before, protected, limits = under_sidestep(asks, "client", str(port)).communicate(timeout=PATIENCE)[0].decode().splitlines()
        assert before.startswith(("state 1 ", "state 2 ")), before
        told(protected, "state 2 version 3.4 cipher 1302 rule 'out' ", *certificate)
        assert limits == "limits 1 1", limits
        waiting = under_sidestep(asks, "client", str(silent.port))
        told(waiting.stdout.readline().decode(), "state 1 version 0.0 cipher 0000 rule 'out' ", "subject 'none'")
        waiting.kill()
        waiting.wait(PATIENCE)
    more = f'versions = ["1.2"]\nclient_certificate = "wanted"\ntrust = "{path("ca.pem")}"'
    for shown in (certificate, ("subject 'none'",)):
        port = free_port()
        with Gateway(inbound(port, more)):
            program = under_sidestep(asks, "server", str(port))
            assert program.stdout.readline() == b"listens\n"
            words = ("-cert", path("right.pem"), "-key", path("right.key")) if shown == certificate else ()
            peer = subprocess.Popen(("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", path("ca.pem"), *words, "-quiet"),
                                    stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            peer.stdin.write(b"x")
            peer.stdin.flush()
            out, _ = program.communicate(timeout=PATIENCE)
            peer.kill()
            peer.wait(PATIENCE)
            told(out.decode().splitlines()[1], "state 2 version 3.3 ", "rule 'in' ", *shown)


@test
def both_programs_are_told_that_their_connection_stays_in_memory():
    port = free_port()
    with Gateway(outbound(port, 'within_host = "memory"') + inbound(port, 'within_host = "memory"')):
        ends = {"server": under_sidestep(path("tls_status"), "server", str(port))}
        assert ends["server"].stdout.readline() == b"listens\n"
        ends["client"] = under_sidestep(path("tls_status"), "client", str(port))
        for rule, end in (("in", "server"), ("out", "client")):
            out, _ = ends[end].communicate(timeout=PATIENCE)
            told(out.decode().splitlines()[1], f"state 3 version 0.0 cipher 0000 rule '{rule}' ", "subject 'none'")


@test
def two_plain_programs_with_tls_between_them():
    said = os.urandom(3_000_000)
    for version in ("1.2", "1.3"):
        port = free_port()
        more = f'versions = ["{version}"]'
        with Gateway(outbound(port, more) + inbound(port, more)):
            exchange(port, said)


@test
def two_programs_of_one_host_stay_in_its_memory():
    """If the rules of both say so: then there is no handshake, and else there is one."""
    said = os.urandom(3_000_000)
    for mine, theirs in (("memory", "memory"), ("memory", "tls"), ("tls", "memory")):
        port = free_port()
        rules = outbound(port, f'within_host = "{mine}"') + inbound(port, f'within_host = "{theirs}"')
        with Gateway(rules):
            exchange(port, said)
            handshakes = [rule["handshakes"] for rule in json.loads(command("tls", "--json").stdout)["rules"]]
            assert handshakes == ([0, 0] if mine == theirs else [1, 1]), (mine, theirs, handshakes)


@test
def a_connection_in_memory_is_seen_and_ends_as_it_should():
    port = free_port()
    rules = outbound(port, 'within_host = "memory"') + inbound(port, 'within_host = "memory"')
    with Gateway(rules):
        program = server(port)
        peer = under_sidestep("python3", "-c", CLIENT.replace(
            "connection.shutdown(socket.SHUT_WR)", "print(connection.recv(999), flush=True)"), str(port))
        peer.stdin.write(SECRET)
        peer.stdin.close()
        assert eval(peer.stdout.readline()) == SECRET
        seen = [it for it in json.loads(command("ss", "--json").stdout) if it.get("protection")]
        assert [it["protection"] for it in seen].count("in memory of this host, by rule out") == 1, seen
        assert [it["protection"] for it in seen].count("in memory of this host, by rule in") == 1, seen
        # What is killed with nothing unread ends in order, as on TCP.
        peer.kill()
        peer.wait(PATIENCE)
        out, err = program.communicate(timeout=PATIENCE)
        assert (program.returncode, out) == (0, SECRET), (program.returncode, out, err)


@test
def a_peer_that_is_no_program_of_ours_has_tls_within_the_host():
    port = free_port()
    with Gateway(outbound(port, 'within_host = "memory"')), OpenSsl(port, "right"):
        status, _ = client(port, b"")
        assert status in (0, 104), status
        told = json.loads(command("tls", "--json").stdout)["rules"]
        assert [rule["handshakes"] for rule in told] == [1], told


# A program in a network namespace of its own has a connection with the same four addresses, and hands its server's end over to
# the gateway of the other namespace.
FORGER = """
import array, ctypes, os, socket, struct, sys
port, client_port, home = int(sys.argv[1]), int(sys.argv[2]), os.open("/proc/self/ns/net", os.O_RDONLY)
ctypes.CDLL(None).unshare(0x40000000)  # CLONE_NEWNET
os.system("ip link set lo up")
with socket.create_server(("127.0.0.1", port)) as listener:
    client = socket.socket()
    client.bind(("127.0.0.1", client_port))
    client.connect(("127.0.0.1", port))
    n, _ = listener.accept()
ctypes.CDLL(None).setns(home, 0)
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect("\\0sidestep/1/gateway")
greeting = line.recv(64)
h = socket.create_connection(("127.0.0.1", struct.unpack(">H", greeting[12:14])[0]), 5)
message = b"SSGW" + struct.pack(">HHIBBHI", 1, 16, 308, 2, 0, h.getsockname()[1], 65536) + b"in".ljust(32, b"\\0")
line.sendmsg([message.ljust(308, b"\\0")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [n.fileno()]))])
h.settimeout(2)
try:
    print(h.recv(65536))
except OSError as error:
    print(error)
"""


@test
def a_connection_of_another_namespace_is_not_the_other_end():
    recorder = Recorder()
    rules = outbound(recorder.port, 'within_host = "memory"') + inbound(recorder.port, 'within_host = "memory"')
    with Gateway(rules):
        program = under_sidestep("python3", "-c", CLIENT, str(recorder.port))
        program.stdin.write(SECRET)
        program.stdin.close()
        end = time.monotonic() + PATIENCE
        while not recorder.heard:
            assert time.monotonic() < end, "no handshake"
            time.sleep(0.02)
        forger = subprocess.run(("python3", "-c", FORGER, str(recorder.port), str(recorder.client[1])),
                                capture_output=True, timeout=PATIENCE)
        assert forger.returncode == 0 and SECRET.strip() not in forger.stdout, forger
        assert b"timed out" in forger.stdout or b"reset" in forger.stdout, forger
        program.kill()
        program.wait(PATIENCE)
    assert recorder.verdict()[:1] == b"\x16", "it begins with a handshake"


@test
def without_a_gateway_nothing_goes_out():
    recorder = Recorder()
    with open(CONFIG, "w") as file:
        file.write(outbound(recorder.port))
    status, _ = client(recorder.port, SECRET)
    assert status == 111, status
    socket.create_connection(("127.0.0.1", recorder.port)).close()
    assert recorder.verdict() == b""
    port = free_port()
    with open(CONFIG, "w") as file:
        file.write(inbound(port))
    program = server(port)
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(SECRET)
        program.communicate(timeout=PATIENCE)
    assert program.returncode == 104, program.returncode


@test
def rules_that_the_library_cannot_read_are_no_plain_text():
    """As of a `sidestep` that is newer than the library of a program that runs."""
    def with_unknown_rules(program, port):
        script = 'SIDESTEP_OPTIONS="$SIDESTEP_OPTIONS tls=$0" exec python3 -c "$1" "$2"'
        return under_sidestep("sh", "-c", script, "sideways|new|1||||", program, str(port))

    with open(CONFIG, "w") as file:
        file.write("")
    recorder = Recorder()
    program = with_unknown_rules(CLIENT, recorder.port)
    _, err = program.communicate(SECRET, PATIENCE)
    assert program.returncode == 111 and b"cannot read" in err, (program.returncode, err)
    socket.create_connection(("127.0.0.1", recorder.port)).close()
    assert recorder.verdict() == b""
    port = free_port()
    program = with_unknown_rules(SERVER, port)
    assert program.stdout.readline() == b"listens\n", program.stderr.read()
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(SECRET)
        _, err = program.communicate(timeout=PATIENCE)
    assert program.returncode == 104 and b"cannot read" in err, (program.returncode, err)


@test
def a_key_that_cannot_be_read_is_no_plain_text():
    port = free_port()
    with Gateway(inbound(port, certificate="right").replace("right.key", "none.key")):
        assert "none.key cannot be read" in command("tls").stdout
        program = server(port)
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(SECRET)
            program.communicate(timeout=PATIENCE)
        assert program.returncode == 104, program.returncode
        assert "none.key cannot be read" in why(port)


def refused_server(certificate, more, words, *s_server, name="a.example"):
    port = free_port()
    with Gateway(outbound(port, more, name)), OpenSsl(port, certificate, *s_server):
        status, heard = client(port, SECRET + b"\n")
        assert (status, heard) == (104, b""), (status, heard)
        assert words in why(port), (words, why(port))


@test
def servers_that_are_not_who_they_should_be():
    refused_server("right", "", "bad_certificate (42)", name="b.example")
    refused_server("ended", "", "certificate_expired (45)")
    refused_server("unknown", "", "unknown_ca (48)")
    refused_server("right", "", "the peer refuses: alert", "-Verify", "1")


# A client that asks the resolver for what its server is called, and connects to what it was told.
BY_NAME = CLIENT.replace('socket.create_connection(("127.0.0.1", int(sys.argv[1])), 15)', "resolve()").replace(
    "import socket, sys", """
import socket, sys
def resolve():
    found = RESOLVE
    connection = socket.socket()
    connection.connect((found, int(sys.argv[1])))
    return connection
""")
GETADDRINFO = 'socket.getaddrinfo("{}", None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]'
GETHOSTBYNAME = 'socket.gethostbyname_ex("{}")[2][0]'


@test
def a_server_is_called_what_the_program_has_resolved():
    """`localhost` is the name that every host resolves without a network."""
    for version, resolve in (("1.2", GETADDRINFO), ("1.3", GETADDRINFO), ("1.3", GETHOSTBYNAME)):
        port = free_port()
        rules = outbound(port, f'versions = ["{version}"]', "resolved") + inbound(port, certificate="local")
        with Gateway(rules):
            program = server(port)
            said = client(port, b"hello\n", BY_NAME.replace("RESOLVE", resolve.format("localhost")))
            out, err = program.communicate(timeout=PATIENCE)
            assert (said, out) == ((0, b"hello\n"), b"hello\n"), (said, out, err)


@test
def a_name_that_was_not_resolved_is_no_name():
    for resolve, certificate, words in (
            ('"127.0.0.1"', "local", "has not resolved a name"),
            (GETADDRINFO.format("127.0.0.1"), "local", "bad_certificate (42)"),
            (GETADDRINFO.format("localhost"), "right", "bad_certificate (42)")):
        port = free_port()
        with Gateway(outbound(port, name="resolved")), OpenSsl(port, certificate):
            status, heard = client(port, SECRET + b"\n", BY_NAME.replace("RESOLVE", resolve))
            # ENOTCONN of a call that is no I/O, where the reset has come before.
            assert status in (104, 107) and heard == b"", (resolve, status, heard)
            assert words in why(port), (resolve, why(port))


@test
def servers_that_cannot_what_they_should():
    old = ("-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
    refused_server("right", "", "alert protocol_version (70)", *old)
    refused_server("right", 'versions = ["1.3"]', "alert protocol_version (70)", "-tls1_2")
    refused_server("right", 'versions = ["1.2"]\nciphers = ["C030"]', "alert handshake_failure (40)",
                   "-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256")


@test
def peers_that_speak_no_tls():
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 smtp.example ESMTP\r\n", b"\x16\x03\x03\xff\xff"):
        recorder = Recorder(answer)
        with Gateway(outbound(recorder.port)):
            status, heard = client(recorder.port, SECRET)
            assert (status, heard) == (104, b""), (status, heard)
            assert recorder.verdict()[:1] == b"\x16", "it begins with a handshake"
            why(recorder.port)


@test
def a_peer_that_ends_in_the_handshake():
    recorder = Recorder(resets=True)
    with Gateway(outbound(recorder.port)):
        status, _ = client(recorder.port, SECRET)
        assert status == 104, status
        recorder.verdict()
        assert "in the middle of the handshake" in why(recorder.port)


@test
def clients_that_show_no_certificate_or_the_wrong_one():
    def try_with(more, *words):
        port = free_port()
        with Gateway(inbound(port, f'client_certificate = "needed"\ntrust = "{path("ca.pem")}"\n{more}')):
            program = server(port)
            subprocess.run(
                ("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-quiet", "-no_ign_eof", *words),
                input=SECRET + b"\n", capture_output=True, timeout=PATIENCE)
            out, _ = program.communicate(timeout=PATIENCE)
            return (program.returncode, out), (why(port) if program.returncode else "")

    own = ("-cert", path("right.pem"), "-key", path("right.key"))
    assert try_with("", *own)[0] == (0, SECRET + b"\n")
    ended, told = try_with("")
    assert ended == (104, b"") and "certificate_required (116)" in told, (ended, told)
    ended, told = try_with('client_names = ["b.example"]', *own)
    assert ended == (104, b"") and "access_denied (49)" in told, (ended, told)


@test
def tls_that_is_cut_off_is_no_end():
    """A relay between the two takes TCP's end for its own after some bytes."""
    for more, status in (("", 104), ('unclean_end = "eof"', 0)):
        port, beyond = free_port(), free_port()
        listener = socket.create_server(("127.0.0.1", port))

        def cut():
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", beyond))
            threading.Thread(target=pass_on, args=(near, far), daemon=True).start()
            heard = 0
            while piece := far.recv(4096):
                heard += len(piece)
                near.sendall(piece)
                if heard > 20_000:
                    near.shutdown(socket.SHUT_WR)
                    return

        def pass_on(source, sink):
            try:
                while piece := source.recv(65536):
                    sink.sendall(piece)
            except OSError:
                pass

        threading.Thread(target=cut, daemon=True).start()
        rule = outbound(port, more)
        with Gateway(rule + inbound(beyond)):
            program = server(beyond)
            ended, heard = client(port, b"x" * 100_000)
            program.kill()
            program.wait(PATIENCE)
            assert ended == status and len(heard) < 100_000, (ended, len(heard))
            if status:
                assert "without close_notify" in why(port)
        listener.close()


@test
def a_syn_carries_no_bytes():
    port = free_port()
    with Gateway(outbound(port)):
        program = under_sidestep("python3", "-c", f"""
import errno, socket
s = socket.socket()
try:
    s.sendto({SECRET!r}, socket.MSG_FASTOPEN, ("127.0.0.1", {port}))
except OSError as error:
    assert error.errno == errno.EOPNOTSUPP, error
""")
        _, err = program.communicate(timeout=PATIENCE)
        assert program.returncode == 0, err


# A client into which nothing can be preloaded.
STATIC = """
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (count != 3 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        return 1;
    write(fd, words[2], strlen(words[2]));
    return sleep(60);
}
"""

# A server that speaks first, in plain text.
SPEAKER = """
import socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    print("listens", flush=True)
    listener.accept()[0].sendall(sys.argv[2].encode())
    time.sleep(60)
"""


@test
def an_enforced_port_is_closed_to_all_but_the_gateway():
    with open(path("past.c"), "w") as file:
        file.write(STATIC)
    subprocess.run(("gcc", "-static", "-o", path("past"), path("past.c")), check=True, timeout=PATIENCE)
    recorder, port, plain = Recorder(), free_port(), free_port()
    enforced = "enforce = true"
    rules = outbound(f"{recorder.port}, {port}", enforced) + inbound(f"{port}, {plain}", enforced)
    with Group(f"sidestep-tls-{os.getpid()}") as group, Group("alone", group.at) as alone, Gateway(rules), \
            Agent(group) as agent:
        agent.await_words("only the gateway sends on connections of: outbound.out, inbound.in")
        past = subprocess.Popen((path("past"), str(recorder.port), SECRET.decode()), preexec_fn=alone.enter)
        agent.await_words(f"to 127.0.0.1:{recorder.port}, and nothing of it leaves")
        assert f"rule outbound.out: past ({past.pid}) of user " in open(agent.log).read()
        past.kill()
        past.wait(PATIENCE)
        # Its end stands behind those bytes, and does not come either.
        assert recorder.heard == b"", recorder.heard
        words = ("python3", "-c", SPEAKER, str(plain), SECRET.decode())
        speaker = subprocess.Popen(words, stdout=subprocess.PIPE, preexec_fn=alone.enter)
        assert speaker.stdout.readline() == b"listens\n"
        with socket.create_connection(("127.0.0.1", plain)) as connection:
            connection.settimeout(0.5)
            try:
                raise AssertionError(connection.recv(100))
            except TimeoutError:
                pass
        agent.await_words(f"rule inbound.in: python3 ({speaker.pid}) of user ")
        speaker.kill()
        speaker.communicate(timeout=PATIENCE)
        # With the library all goes through the gateway.
        said = os.urandom(300_000)
        exchange(port, said, group)


@test
def a_rule_of_the_filter_demands_tls():
    if os.environ.get("MOUNTS") != "own":
        return print("a_rule_of_the_filter_demands_tls: skipped, without a mount namespace of its own")
    for kind, at in (("bpf", "/sys/fs/bpf"), ("tmpfs", "/run")):
        subprocess.run(("mount", "-t", kind, "none", at), check=True, timeout=PATIENCE)
    recorder, port = Recorder(), free_port()
    with open(path("rules"), "w") as file:
        file.writelines(f"permit tcp any any:{it} both tls\npermit tcp any:{it} any both tls\n"
                        for it in (recorder.port, port))
    with Group(f"sidestep-rule-{os.getpid()}") as group, Gateway(outbound(port) + inbound(port)):
        applied = command("filter", "apply", path("rules"), "--cgroup", group.at)
        assert applied.returncode == 0, applied.stderr
        said = os.urandom(300_000)
        exchange(port, said, group)
        denied = json.loads(command("filter", "show", "--json").stdout)["packets_denied"]
        # No rule of TLS is about this port, so the connection begins, and no byte of it leaves.
        words = ("python3", "-c", CLIENT, str(recorder.port))
        plain = subprocess.Popen(words, stdin=subprocess.PIPE, preexec_fn=group.enter)
        plain.stdin.write(SECRET)
        plain.stdin.close()
        end = time.monotonic() + PATIENCE
        while json.loads(command("filter", "show", "--json").stdout)["packets_denied"] == denied:
            assert time.monotonic() < end and plain.poll() is None, "nothing was denied"
            time.sleep(0.05)
        plain.kill()
        plain.wait(PATIENCE)
        assert recorder.heard == b"", recorder.heard
        assert command("filter", "remove").returncode == 0


@test
def other_ports_are_left_as_they_are():
    recorder = Recorder(resets=True)
    with Gateway(outbound(free_port())):
        client(recorder.port, SECRET)
        recorder.listener.close()
        recorder.thread.join(PATIENCE)
        assert recorder.heard == SECRET, recorder.heard


@test
def config_check_tells_what_should_be_looked_after():
    os.chmod(path("open.key"), 0o644)
    with open(CONFIG, "w") as file:
        file.write(inbound('"8000-9000"', certificate="ended")
                   + inbound(8443, certificate="open").replace("inbound.in", "inbound.late"))
    told = command("config", "check").stdout
    for words in ("inbound.late: never decides: in, before it", "inbound.late: its key can be read by others",
                  "inbound.in: its certificate has ended", "tls"):
        assert words in told, (words, told)


def main():
    authority("ca")
    authority("other")
    issue("right", "ca", "DNS:a.example")
    issue("ended", "ca", "DNS:a.example", "-days", "-1")
    issue("unknown", "other", "DNS:a.example")
    issue("open", "ca", "DNS:a.example")
    issue("local", "ca", "DNS:localhost")
    chosen = sys.argv[3:]
    for function in TESTS:
        if not chosen or function.__name__ in chosen:
            begin = time.monotonic()
            function()
            print(f"{function.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
    print(f"verified {len(TESTS)}")


if __name__ == "__main__":
    main()
