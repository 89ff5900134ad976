"""TLS by rules, and programs with TLS of their own at the other end.

usage: tls_peers.py SIDESTEP SCRATCH [TEST ...]

Needs a network namespace of its own, as tls.py, which has the rules, certificates and plain programs, and a mount namespace
of its own, where it writes /etc/hosts: curl asks no resolver for `localhost`. Each test says what came of it; a peer that is not installed is named. The last line is "verified N".
"""

import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time

import tls
from tls import (PATIENCE, Gateway, await_listener, client, command, free_port, inbound, outbound, path, server,
                 under_sidestep)

TESTS = []
BIG = bytes(range(256)) * 12_000


def test(*needs):
    def note(function):
        TESTS.append((function, needs))
        return function
    return note


def handshakes():
    """Of each rule: all, and those with keys of an earlier connection."""
    rules = json.loads(command("tls", "--json").stdout)["rules"]
    return [(rule["handshakes"], rule["resumed"]) for rule in rules]


def await_handshakes(expected):
    end = time.monotonic() + PATIENCE
    while handshakes() != expected:
        assert time.monotonic() < end, handshakes()
        time.sleep(0.02)


class Files:
    """A plain HTTP server under Sidestep with one large file."""

    def __init__(self, port):
        os.makedirs(path("www"), exist_ok=True)
        with open(path("www/big"), "wb") as file:
            file.write(BIG)
        self.process = under_sidestep("python3", "-m", "http.server", "--bind", "127.0.0.1",
                                      "--directory", path("www"), str(port))
        await_listener(port)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, timeout=PATIENCE, **more)
    assert done.returncode == 0, (words, done)
    return done.stdout


# ---- clients with TLS, a plain server -----------------------------------------------------------


@test("curl")
def curl_and_a_plain_server():
    """Both versions, a large answer, a protocol by ALPN, a client certificate."""
    port = free_port()
    more = f'client_certificate = "wanted"\ntrust = "{path("ca.pem")}"\nalpn = ["http/1.1"]'
    with Gateway(inbound(port, more, "local")), Files(port):
        for version in ("1.2", "1.3"):
            for own in ((), ("--cert", path("right.pem"), "--key", path("right.key"))):
                url = f"https://localhost:{port}/big"
                words = ("--cacert", path("ca.pem"), "--tlsv" + version, "--tls-max", version, "--http2", *own)
                assert run("curl", "-sS4", *words, url) == BIG
        assert handshakes()[0][0] == 4, handshakes()


@test("curl", "nginx")
def a_plain_curl_and_nginx():
    """A client whose resolver is a thread of its own, by the name that it has resolved; then session tickets."""
    port = free_port()
    configuration = f"""
daemon off; pid {path("nginx.pid")}; error_log stderr; worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path {path("t1")}; proxy_temp_path {path("t2")}; fastcgi_temp_path {path("t3")};
    uwsgi_temp_path {path("t4")}; scgi_temp_path {path("t5")};
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {path("right.pem")}; ssl_certificate_key {path("right.key")};
        ssl_protocols TLSv1.2 TLSv1.3; ssl_session_tickets on; ssl_session_cache off;
        root {path("www")};
        location /who {{ return 200 "$ssl_protocol $ssl_server_name $ssl_client_verify"; }}
    }}
}}
"""
    with open(path("nginx.conf"), "w") as file:
        file.write("user root;" + configuration)
    with open(path("www/big"), "wb") as file:
        file.write(BIG)
    for version in ("1.2", "1.3"):
        with Gateway(outbound(port, f'versions = ["{version}"]', "resolved")):
            nginx = subprocess.Popen(("nginx", "-c", path("nginx.conf"), "-e", "stderr"),
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                await_listener(port)
                url = f"http://a.example:{port}"
                for resumed in (0, 1):
                    got = under_sidestep("curl", "-sS4", f"{url}/who").communicate(timeout=PATIENCE)
                    assert got[0] == f"TLSv{version} a.example NONE".encode(), got
                    await_handshakes([(1 + resumed, resumed)])
                got = under_sidestep("curl", "-sS4", f"{url}/big").communicate(timeout=PATIENCE)
                assert got[0] == BIG, (len(got[0]), got[1])
            finally:
                nginx.terminate()
                nginx.communicate(timeout=PATIENCE)


@test("node")
def node_and_a_plain_server():
    """Ten connections at once."""
    port = free_port()
    script = """
const https = require('https'), fs = require('fs'), crypto = require('crypto');
const [ca, port] = process.argv.slice(1);
let left = 10;
for (let n = 0; n < left; n++) {
    const wanted = { host: 'localhost', family: 4, port, path: '/big', ca: fs.readFileSync(ca), agent: false };
    https.get(wanted, (answer) => {
        const hash = crypto.createHash('sha256');
        answer.on('data', (piece) => hash.update(piece));
        answer.on('end', () => console.log(hash.digest('hex')));
    }).on('error', (error) => { console.log(error); process.exit(1); });
}
"""
    with Gateway(inbound(port, certificate="local")), Files(port):
        told = run("node", "-e", script, path("ca.pem"), str(port)).decode().split()
        assert told == [hashlib.sha256(BIG).hexdigest()] * 10, told


@test("java")
def java_and_a_plain_server():
    """In both versions, without Java's own list of authorities."""
    program = """
import java.io.*; import java.net.*; import java.security.*; import java.security.cert.*; import javax.net.ssl.*;
public class Get {
    public static void main(String[] words) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream file = new FileInputStream(words[0])) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance("PKIX");
        trust.init(store);
        for (String version : new String[] {"TLSv1.2", "TLSv1.3"}) {
            SSLContext context = SSLContext.getInstance(version);
            context.init(null, trust.getTrustManagers(), null);
            HttpsURLConnection connection = (HttpsURLConnection) new URL(words[1]).openConnection();
            connection.setSSLSocketFactory(context.getSocketFactory());
            System.out.println(version + " " + connection.getInputStream().readAllBytes().length);
        }
    }
}
"""
    port = free_port()
    with open(path("Get.java"), "w") as file:
        file.write(program)
    with Gateway(inbound(port, certificate="local")), Files(port):
        told = run("java", "-Djava.net.preferIPv4Stack=true", "-XX:TieredStopAtLevel=1", path("Get.java"),
                   path("ca.pem"), f"https://localhost:{port}/big")
        assert told.decode().split() == ["TLSv1.2", str(len(BIG)), "TLSv1.3", str(len(BIG))], told


def go_peer():
    """The program, built once: Go builds its library on the way, so the cache is the user's."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tls_peer.go")
    if not os.path.exists(path("tls_peer")):
        subprocess.run(("go", "build", "-o", path("tls_peer"), source), check=True, capture_output=True, timeout=300)
    return path("tls_peer")


@test("go")
def go_and_a_plain_server():
    for version in ("1.2", "1.3"):
        port, program = free_port(), go_peer()
        with Gateway(inbound(port)):
            heard = Heard(server(port))
            assert run(program, "client", str(port), version, path("ca.pem"), input=BIG) == BIG
            assert heard.all() == BIG
            assert handshakes() == [(1, 0)], handshakes()


class Process:
    """A program that shows what it receives."""

    def __init__(self, *words):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)
        self.said = b""

    def write(self, said):
        self.process.stdin.write(said)
        self.process.stdin.flush()

    def until(self, text):
        while text not in self.said:
            piece = self.process.stdout.read1()
            assert piece, self.said
            self.said += piece

    def end(self):
        self.process.stdin.close()
        self.said += self.process.stdout.read()
        self.process.wait(PATIENCE)
        return self.said


class Client(Process):
    """`openssl s_client`."""

    def __init__(self, port, *words):
        super().__init__("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", path("ca.pem"), *words)


class Heard:
    """What a program prints, taken while it does: it waits for who reads."""

    def __init__(self, program):
        self.out = b""
        self.thread = threading.Thread(target=self.take, args=(program,), daemon=True)
        self.thread.start()

    def take(self, program):
        self.out, _ = program.communicate(timeout=2 * PATIENCE)

    def all(self):
        self.thread.join(2 * PATIENCE)
        return self.out


class Stunnel:
    def __init__(self, service, port):
        with open(path("stunnel.conf"), "w") as file:
            file.write(f"foreground = yes\npid =\n[s]\n{service}\n")
        self.process = subprocess.Popen(("stunnel", path("stunnel.conf")), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        await_listener(port)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(PATIENCE)


def talk(port):
    """What comes back of all that is sent, by a connection of this process."""
    with tls.socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        threading.Thread(target=connection.sendall, args=(BIG,), daemon=True).start()
        heard = b""
        while len(heard) < len(BIG):
            piece = connection.recv(1 << 16)
            assert piece, len(heard)
            heard += piece
    return heard


# The same in a program of its own. It ends when all has come back, so nothing hangs on who may close what by half.
TALK = """
import socket, sys, threading
said, heard = sys.stdin.buffer.read(), 0
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 15) as connection:
    threading.Thread(target=connection.sendall, args=(said,), daemon=True).start()
    while heard < len(said):
        piece = connection.recv(65536)
        assert piece, heard
        sys.stdout.buffer.write(piece)
        heard += len(piece)
sys.stdout.buffer.flush()
"""


# One line there and one back.
ASK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 15) as connection:
    connection.sendall(sys.stdin.buffer.read())
    sys.stdout.buffer.write(connection.recv(100))
sys.stdout.buffer.flush()
"""


@test("openssl")
def openssl_goes_on_with_a_session():
    for version in ("-tls1_2", "-tls1_3"):
        port = free_port()
        with Gateway(inbound(port)):
            for resumed, session in ((0, "-sess_out"), (1, "-sess_in")):
                program, peer = server(port), Client(port, version, session, path("session"))
                peer.write(b"hello\n")
                # Tickets of TLS 1.3 come behind the handshake, and before this.
                peer.until(b"hello\n")
                peer.end()
                out, _ = program.communicate(timeout=PATIENCE)
                assert (program.returncode, out) == (0, b"hello\n"), (program.returncode, out)
                assert handshakes() == [(1 + resumed, resumed)], (version, handshakes(), peer.said)


@test("openssl")
def a_renegotiation_is_refused():
    """TLS 1.2 has it, and it has been a hole more than once: the client is told so, and gives up."""
    port = free_port()
    with Gateway(inbound(port)):
        program, peer = server(port), Client(port, "-tls1_2")
        peer.write(b"hello\n")
        peer.until(b"hello\n")
        # A line of its own that begins with this.
        peer.write(b"R\n")
        peer.until(b"no renegotiation")
        peer.end()
        program.communicate(timeout=PATIENCE)
        assert handshakes() == [(1, 0)], handshakes()


@test("gnutls-cli")
def gnutls_and_a_plain_server():
    for version in ("1.2", "1.3"):
        port = free_port()
        with Gateway(inbound(port, certificate="local")):
            program = server(port)
            words = ("gnutls-cli", "--x509cafile", path("ca.pem"), "--priority", f"NORMAL:-VERS-ALL:+VERS-TLS{version}")
            peer = Process(*words, "-p", str(port), "localhost")
            peer.write(b"hello\n")
            # What was typed is not shown.
            peer.until(b"hello\n")
            said = peer.end()
            out, _ = program.communicate(timeout=PATIENCE)
            assert (program.returncode, out) == (0, b"hello\n"), (program.returncode, out, said)
            assert f"TLS{version}".encode() in said, said


@test("stunnel")
def stunnel_and_a_plain_server():
    for version in ("TLSv1.2", "TLSv1.3"):
        port, near = free_port(), free_port()
        with Gateway(inbound(port)):
            program = server(port)
            with Stunnel(f"""client = yes
accept = 127.0.0.1:{near}
connect = 127.0.0.1:{port}
CAfile = {path("ca.pem")}
verifyChain = yes
checkHost = a.example
sslVersion = {version}""", near):
                heard = Heard(program)
                assert talk(near) == BIG
            assert heard.all() == BIG
            assert handshakes()[0][0] == 1, handshakes()


# ---- a plain client, servers with TLS -----------------------------------------------------------


@test()
def a_plain_client_and_python():
    """Records of all lengths up to the longest, a certificate for the server, and each way to end."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path("right.pem"), path("right.key"))
    context.load_verify_locations(path("ca.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    lengths = [1, 2, 255, 256, 1023, 4096, 16383, 16384, 16385, 40000]
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.maximum_version = context.minimum_version = version
        for is_clean, more, ended in ((True, "", 0), (False, "", 104), (False, 'unclean_end = "eof"', 0)):
            heard = []

            def serve(listener):
                plain, _ = listener.accept()
                plain.settimeout(PATIENCE)
                with context.wrap_socket(plain, server_side=True, suppress_ragged_eofs=False) as peer:
                    heard.append(peer.getpeercert()["subjectAltName"])
                    said = b""
                    while len(said) < len(BIG):
                        said += peer.recv(1 << 16)
                    heard.append(said == BIG)
                    for length in lengths:
                        peer.sendall(b"x" * length)
                    if is_clean:
                        peer.unwrap()

            listener = tls.socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            own = f'certificate = "{path("right.pem")}"\nkey = "{path("right.key")}"\nhalf_close = "hold"\n'
            thread = threading.Thread(target=serve, args=(listener,), daemon=True)
            thread.start()
            with Gateway(outbound(port, own + more)):
                status, got = client(port, BIG)
            thread.join(PATIENCE)
            listener.close()
            assert heard == [(("DNS", "a.example"),), True], (version, heard)
            assert status == ended, (version, is_clean, more, status)
            # A reset may overtake bytes.
            assert got == b"x" * sum(lengths) or status and set(got) <= {120}, (version, status, len(got))


@test("haproxy")
def a_plain_client_and_haproxy():
    port = free_port()
    with open(path("haproxy.pem"), "w") as pair:
        pair.write(open(path("local.pem")).read() + open(path("local.key")).read())
    with open(path("haproxy.cfg"), "w") as file:
        file.write(f"""
defaults
    mode http
    timeout client 20s
    timeout connect 20s
    timeout server 20s
frontend f
    bind 127.0.0.1:{port} ssl crt {path("haproxy.pem")}
    http-request return status 200 content-type text/plain lf-string "%[ssl_fc_protocol] %[ssl_fc_sni]"
""")
    with Gateway(outbound(port, name="localhost")):
        haproxy = subprocess.Popen(("haproxy", "-db", "-f", path("haproxy.cfg")),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            await_listener(port)
            got = under_sidestep("curl", "-sS4", f"http://localhost:{port}/").communicate(timeout=PATIENCE)
            assert got[0] == b"TLSv1.3 localhost", got
        finally:
            haproxy.kill()
            haproxy.communicate(timeout=PATIENCE)


@test("go")
def a_plain_client_and_go():
    for version in ("1.2", "1.3"):
        port = free_port()
        with Gateway(outbound(port)):
            peer = subprocess.Popen((go_peer(), "server", str(port), version, path("right.pem"), path("right.key")))
            try:
                await_listener(port)
                status, heard = client(port, BIG, TALK)
                assert (status, heard == BIG) == (0, True), (version, status, len(heard))
                assert peer.wait(PATIENCE) == 0
            finally:
                peer.kill()
                peer.wait(PATIENCE)


@test("gnutls-serv")
def a_plain_client_and_gnutls():
    for version in ("1.2", "1.3"):
        port = free_port()
        with Gateway(outbound(port)):
            peer = subprocess.Popen(
                ("gnutls-serv", "--echo", "--quiet", "--disable-client-cert", "-p", str(port),
                 "--priority", f"NORMAL:-VERS-ALL:+VERS-TLS{version}", "--x509certfile", path("right.pem"),
                 "--x509keyfile", path("right.key")), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                await_any_listener(port)
                status, heard = client(port, b"hello\n", ASK)
                assert (status, heard.strip()) == (0, b"hello"), (status, heard)
                assert handshakes()[0][0] == 1, handshakes()
            finally:
                peer.kill()
                peer.wait(PATIENCE)


@test("stunnel")
def a_plain_client_and_stunnel():
    for version in ("TLSv1.2", "TLSv1.3"):
        port, far = free_port(), free_port()
        with Gateway(outbound(port)), Echo(far), Stunnel(f"""accept = 127.0.0.1:{port}
connect = 127.0.0.1:{far}
cert = {path("right.pem")}
key = {path("right.key")}
sslVersion = {version}""", port):
            status, heard = client(port, BIG, TALK)
            assert (status, heard == BIG) == (0, True), (version, status, len(heard))


class Echo:
    """Sends the bytes of its connections back."""

    def __init__(self, port):
        self.listener = tls.socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        try:
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    while piece := connection.recv(1 << 16):
                        connection.sendall(piece)
        except OSError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


def await_any_listener(port):
    """Also one of IPv6, or of all addresses."""
    end = time.monotonic() + PATIENCE
    tables = ("/proc/net/tcp", "/proc/net/tcp6")
    while not any(f":{port:04X} " in line and " 0A " in line for table in tables for line in open(table)):
        assert time.monotonic() < end, f"no listener at {port}"
        time.sleep(0.02)


# ---- syslog -------------------------------------------------------------------------------------

DRIVERS = "/usr/lib/x86_64-linux-gnu/rsyslog/"


def forwarding(said, port, more="", module="omfwd", settings=""):
    """The configuration of a sender of the lines of a file."""
    # There it remembers how far it has read.
    work = path(f"work-{port}")
    os.makedirs(work)
    protocol = 'protocol="tcp"' if module == "omfwd" else ""
    with open(said, "w"):
        pass
    with open(path("sender.conf"), "w") as file:
        file.write(f"""
global(workDirectory="{work}"{settings})
module(load="imfile")
{f'module(load="{module}")' if module != "omfwd" else ""}
input(type="imfile" file="{said}" tag="t:")
action(type="{module}" target="127.0.0.1" port="{port}" {protocol} action.resumeRetryCount="-1"
       action.resumeInterval="1" queue.type="LinkedList" queue.size="100000" {more})
""")


def collecting(heard, port, more="", module="imtcp", settings=""):
    """That of a collector."""
    if os.path.exists(heard):
        os.remove(heard)
    where = 'address="127.0.0.1"' if module == "imtcp" else ""
    with open(path("collector.conf"), "w") as file:
        file.write(f"""
global(workDirectory="{tls.SCRATCH}"{settings})
module(load="{module}"{more})
input(type="{module}" port="{port}" {where})
template(name="only" type="string" string="%msg%\\n")
action(type="omfile" file="{heard}" template="only")
""")


def end_rsyslogd(process):
    """By the signal of service managers. Its threads wait in `epoll_wait` and have to be told."""
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (process.returncode, err)


def add_messages(said, first, end):
    with open(said, "a") as file:
        file.writelines(f"message {n}\n" for n in range(first, end))


def messages(heard):
    with open(heard) as file:
        return [line.strip() for line in file]


@test("rsyslogd", DRIVERS + "lmnsd_ossl.so", DRIVERS + "lmnsd_gtls.so")
def rsyslog_with_tls_of_its_own():
    """At either end, by OpenSSL and by GnuTLS; the other end has a rule."""
    said, heard = path("said"), path("heard")
    files = (f' defaultNetstreamDriverCAFile="{path("ca.pem")}" defaultNetstreamDriverCertFile="{path("local.pem")}"'
             f' defaultNetstreamDriverKeyFile="{path("local.key")}"')
    for driver in ("ossl", "gtls"):
        for is_sender in (True, False):
            port = free_port()
            own = (f' streamDriver="{driver}" streamDriverMode="1" streamDriverAuthMode="x509/name"'
                   ' streamDriverPermittedPeers="localhost"')
            forwarding(said, port, own if is_sender else "", settings=files if is_sender else "")
            own = f' streamDriver.name="{driver}" streamDriver.mode="1" streamDriver.authMode="anon"'
            collecting(heard, port, "" if is_sender else own, settings="" if is_sender else files)
            rule = inbound(port, certificate="local") if is_sender else outbound(port, name="localhost")
            with Gateway(rule):
                collector = rsyslogd("collector")
                await_listener(port)
                sender = rsyslogd("sender")
                add_messages(said, 0, 2000)
                await_lines(heard, 2000)
                assert handshakes()[0][0] == 1, handshakes()
                end_rsyslogd(sender)
                end_rsyslogd(collector)
            assert messages(heard) == [f"message {n}" for n in range(2000)], (driver, is_sender)


@test("rsyslogd", DRIVERS + "omrelp.so", DRIVERS + "imrelp.so")
def a_collector_that_begins_again_loses_nothing_by_relp():
    """RELP says of each message that it has come, so those on their way are sent again: some may come twice."""
    count, port = 20_000, free_port()
    said, heard = path("said"), path("heard")
    forwarding(said, port, module="omrelp")
    collecting(heard, port, module="imrelp")
    with Gateway(outbound(port, name="localhost") + inbound(port, certificate="local")):
        collector = rsyslogd("collector")
        await_any_listener(port)
        sender = rsyslogd("sender")
        add_messages(said, 0, count)
        await_lines(heard, count // 10)
        end_rsyslogd(collector)
        collector = rsyslogd("collector")
        end = time.monotonic() + PATIENCE
        while len(set(messages(heard))) < count:
            assert time.monotonic() < end, len(set(messages(heard)))
            time.sleep(0.1)
        end_rsyslogd(sender)
        end_rsyslogd(collector)
        assert handshakes()[0][0] >= 2, handshakes()
    assert set(messages(heard)) == {f"message {n}" for n in range(count)}


@test("rsyslogd")
def rsyslog_to_rsyslog():
    """Two rsyslogd that know nothing of TLS: each message, once, in order."""
    count, port = 20_000, free_port()
    said, heard = path("said"), path("heard")
    forwarding(said, port)
    collecting(heard, port)
    rules = outbound(port, name="localhost") + inbound(port, certificate="local")
    with Gateway(rules):
        collector = rsyslogd("collector")
        await_listener(port)
        sender = rsyslogd("sender")
        add_messages(said, 0, count // 2)
        await_lines(heard, count // 2)
        seen = [it for it in json.loads(command("ss", "--json").stdout) if it["mode"] == "TLS"]
        assert len(seen) == 2, seen
        add_messages(said, count // 2, count)
        await_lines(heard, count)
        end_rsyslogd(sender)
        end_rsyslogd(collector)
    assert messages(heard) == [f"message {n}" for n in range(count)], (len(messages(heard)), messages(heard)[:3])


def rsyslogd(name):
    return under_sidestep("rsyslogd", "-n", "-f", path(f"{name}.conf"), "-i", path(f"{name}.pid"))


def await_lines(name, count):
    end = time.monotonic() + PATIENCE
    while not os.path.exists(name) or sum(1 for _ in open(name)) < count:
        assert time.monotonic() < end, f"{name} has not got {count} lines"
        time.sleep(0.1)


def name_hosts():
    """In this mount namespace alone."""
    assert os.environ.get("MOUNTS") == "own", "begin it by unshare --mount, and say so: MOUNTS=own"
    with open(path("hosts"), "w") as file:
        file.write("127.0.0.1 localhost a.example\n")
    run("mount", "--bind", path("hosts"), "/etc/hosts")


def main():
    name_hosts()
    tls.authority("ca")
    tls.issue("right", "ca", "DNS:a.example")
    tls.issue("local", "ca", "DNS:localhost")
    os.makedirs(path("www"), exist_ok=True)
    chosen, verified = sys.argv[3:], 0
    for function, needs in TESTS:
        if chosen and function.__name__ not in chosen:
            continue
        lacking = [name for name in needs if shutil.which(name) is None and not os.path.exists(name)]
        if lacking:
            print(f"{function.__name__}: skipped, without {', '.join(lacking)}", flush=True)
            continue
        begin = time.monotonic()
        function()
        verified += 1
        print(f"{function.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
    print(f"verified {verified}")


if __name__ == "__main__":
    main()
