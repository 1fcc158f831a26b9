# SPDX-License-Identifier: Apache-2.0
"""Values go to no server whose certificate is not trusted."""
import datetime
import http.server
import ipaddress
import json
import ssl
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ANSWERS = {"experiments/get-by-name": {"experiment": {"experiment_id": "1"}},
           "runs/create": {"run": {"info": {"run_id": "r1"}}}}


def write_certificate(folder):
    """For 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "af test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
                   .serial_number(1).not_valid_before(now - datetime.timedelta(days=1))
                   .not_valid_after(now + datetime.timedelta(days=1)).add_extension(address, critical=False)
                   .sign(key, hashes.SHA256()))
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))


class Server(http.server.ThreadingHTTPServer):
    """Answers as an MLflow server would, and keeps what it was sent."""

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.calls, self.metrics = [], []

    def handle_error(self, request, client_address):
        pass  # a client that does not trust it


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        call = self.path.partition("/mlflow/")[2].partition("?")[0]
        self.server.calls.append((call, self.headers.get("Authorization")))
        body = json.dumps(ANSWERS.get(call, {})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.metrics += sent.get("metrics", [])
        self.do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    write_certificate(tmp_path)
    server = Server(tmp_path)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def variables(server):
    return {"MLFLOW_TRACKING_URI": f"https://127.0.0.1:{server.server_port}", "MLFLOW_TRACKING_TOKEN": "s3cret"}


def test_a_certificate_that_nobody_knows_is_not_trusted(server, start_training):
    training = start_training(**variables(server))
    training.steps(1)
    said = training.process.stderr.readline()
    assert "does not take values now" in said and "certificate" in said
    training.kill()
    assert server.calls == []


@pytest.mark.parametrize("trust", ["MLFLOW_TRACKING_SERVER_CERT_PATH", "MLFLOW_TRACKING_INSECURE_TLS"])
def test_one_that_is_trusted_on_request(server, start_training, tmp_path, trust):
    value = str(tmp_path / "certificate.pem") if trust.endswith("PATH") else "true"
    training = start_training(**variables(server), **{trust: value})
    training.steps(2)
    assert training.finish() == ""
    assert [one["step"] for one in server.metrics if one["key"] == "loss"] == [1, 2]
    assert {authorization for _, authorization in server.calls} == {"Bearer s3cret"}
