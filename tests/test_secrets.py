"""The corpus both ways. Tokens are put together here, so that this file trips no scanner itself."""

import base64
import hashlib
import random
import string
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfs.engine.secrets import (
    Scanner,
    SecretRecord,
    can_become_utf8,
    register,
    screen,
)
from memfs.errors import Invalid, InvalidText, SecretRefused, TextTooLong
from memfs.limits import NOTE_BYTES, SECRET_MAX_CHARS, SECRET_MIN_CHARS
from memfs.types import Time

ALNUM = string.ascii_letters + string.digits
SHAPES = Scanner()
examples = settings(derandomize=True, deadline=None, max_examples=200, database=None)


def made(length: int, alphabet: str = ALNUM, seed: int = 7) -> str:
    return "".join(random.Random(seed).choices(alphabet, k=length))


def hexa(length: int) -> str:
    return made(length, "0123456789abcdef")


BASE64URL = ALNUM + "-_"
UPPER = string.ascii_uppercase + string.digits

TOKENS = {
    "github classic": "gh" + "p_" + made(36),
    "github oauth": "gh" + "o_" + made(36),
    "github user": "gh" + "u_" + made(36),
    "github server": "gh" + "s_" + made(36),
    "github refresh": "gh" + "r_" + made(76),
    "github fine": "github" + "_pat_" + made(22) + "_" + made(59),
    "gitlab": "gl" + "pat-" + made(20, BASE64URL),
    "slack bot": "xo" + "xb-" + made(12, "123456") + "-" + made(13, "123456") + "-" + made(24),
    "slack user": "xo" + "xp-" + made(12, "123456") + "-" + hexa(32),
    "slack app": "xapp" + "-1-" + made(11, UPPER) + "-" + made(13, "123456") + "-" + hexa(64),
    "anthropic": "sk-" + "ant-api03-" + made(93, BASE64URL) + "AA",
    "openai old": "sk" + "-" + made(48),
    "openai project": "sk-" + "proj-" + made(74, BASE64URL),
    "stripe": "sk" + "_live_" + made(24),
    "stripe restricted": "rk" + "_live_" + made(24),
    "stripe test": "sk" + "_test_" + made(24),
    "stripe dashes": "sk" + "-live-" + "0123456789abcdef",
    "aws id": "AK" + "IA" + made(16, UPPER),
    "aws temporary id": "AS" + "IA" + made(16, UPPER),
    "google": "AI" + "za" + made(35, BASE64URL),
    "hugging face": "h" + "f_" + made(34, string.ascii_letters),
    "npm": "np" + "m_" + made(36),
    "pypi": "py" + "pi-AgEIcHlwaS5vcmc" + made(150, BASE64URL),
    "sendgrid": "S" + "G." + made(22, BASE64URL) + "." + made(43, BASE64URL),
    "twilio": "S" + "K" + hexa(32),
    "telegram": made(10, "123456789") + ":" + "AA" + made(33, BASE64URL),
    "discord": "M" + "TA4" + made(20) + "." + made(6) + "." + made(38, BASE64URL),
    "jwt": "ey" + "JhbGciOiJIUzI1NiJ9" + ".ey" + "J" + made(40) + "." + made(43, BASE64URL),
    "groq": "gs" + "k_" + made(52),
    "digitalocean": "do" + "p_v1_" + hexa(64),
    "vault": "hv" + "s." + made(90, BASE64URL),
    "age": "AGE-SECRET" + "-KEY-1" + made(58, UPPER),
    "memfs": "mem" + "fs_" + made(43, BASE64URL),
}

PASS = "pass" + "word"
SECRET_TEXTS = [
    "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow\n",
    "key:\n  -----BEGIN OPENSSH " + "PRIVATE KEY-----\n  b3BlbnNzaC1rZXk\n",
    '{"private_key": "-----BEGIN ' + 'PRIVATE KEY-----\\nMIIE"}',
    "-----BEGIN PGP " + "PRIVATE KEY BLOCK-----\n\nlQ",
    f"{PASS}=hunter2",
    f"{PASS}: hunter2\n",
    f"**{PASS.title()}:** hunter2",
    f"- {PASS}: `hunter2`",
    f"| {PASS} | hunter2 |",
    f"user: bob {PASS}: hunter2 host: db1",
    f"The {PASS} is `hunter2`.",
    f"My {PASS} is hunter2",
    f"the wifi {PASS} is hunter2, ask Bob",
    f"the {PASS} is Tr0ub4dor&3, do not tell",
    f"mysql --user bob --{PASS} hunter2",
    f"mysql --user bob --{PASS}=hunter2",
    f'{PASS} = "swordfish"',
    f'{PASS}: str = "hunter2"',
    f'"db_{PASS}": "hunter2",',
    f'\\"{PASS}\\": \\"hunter2\\"',
    f"<{PASS}>hunter2</{PASS}>",
    f"{PASS}: correct-horse-battery-staple",
    f"{PASS}: P@$$wording!",
    f"{PASS}: 12345678",
    f"export DB_{PASS.upper()}=swordfish",
    f"DB_{PASS.upper()}=hunter2",
    "pass" + "wd: hunter2!",
    "pass" + "phrase = 'correct7horse'",
    "Server=db;Uid=sa;P" + "wd=hunter2x;",
    "SMTP_PA" + "SS=hunter2",
    f"https://x.test/?user=bob&{PASS}=hunter2&z=1",
    "postgres://app:" + "s3cr3t@db.internal/main",
    "redis://" + ":p4ssphrase@10.0.0.1:6379",
    "git clone https://" + "bob:swordfish@git.test/x.git",
    "https://hooks.slack" + ".com/services/T00000000/B00000000/" + made(24),
    "https://discord" + ".com/api/webhooks/123456789012345678/" + made(68),
    "api_key=" + hexa(32),
    'apiKey: "' + made(24) + '"',
    "x-api-key: " + made(40),
    "API key is " + made(32),
    "api_k" + 'ey = "abcd1234efgh"',
    "client_secret: " + made(40),
    "SECRET_KEY = '" + made(50, ALNUM + "!@#%") + "'",
    "sec" + "ret=s3cr3tvalue",
    "aws_secret_access_key = " + made(40, ALNUM + "/+"),
    "aws_secret_access" + "_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMQLEKEY",
    "access_token: " + made(40),
    "auth_token=" + hexa(40),
    "curl -H 'Authorization: Bearer " + made(40) + "'",
    "Authorization: Basic " + base64.b64encode(b"bob:hunter2hunter2").decode(),
]

CLEAN = [
    "",
    "memfs_" + "a_name_of_words_that_goes_on_and_on_" * 2,
    "memfs_" + "NAMES_IN_CAPITALS_SAY_WHAT_IS_MEANT_HERE_" * 2,
    "curl -H 'x-api-key: memfs_…' and memfs_xxxxxxxxXXXXXXXXxxxxxxxxXXXXXXXXxxxxxxxxXXX",
    "export MEMFS_KEY=memfs_your-key-here, apikey_01HZX3K8Q5T7V9W2Y4A6C8E0G1 names it",
    "sha256: " + hashlib.sha256(b"x").hexdigest(),
    hashlib.sha256(b"x").hexdigest() + "  file.md",
    "sha512-" + base64.b64encode(hashlib.sha512(b"x").digest()).decode(),
    "commit " + hashlib.sha1(b"x").hexdigest(),
    "mem_01HZX3K8Q5T7V9W2Y4A6C8E0G1 and memver_01HZX3K8Q5T7V9W2Y4A6C8E0G2",
    "token: mem_01HZX3K8Q5T7V9W2Y4A6C8E0G1",
    str(uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)),
    "secret: " + str(uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)),
    "![x](data:image/png;base64," + base64.b64encode(random.Random(3).randbytes(9000)).decode(),
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + made(43, ALNUM + "/+") + " bob@host",
    "page_token: " + made(40),
    '"NextContinuationToken": "' + made(40) + '"',
    f'NO_{PASS.upper()} = "no-{PASS}-required"',
    f'ASK_{PASS.upper()} = "ASK_{PASS.upper()}"',
    f"socks5://<user>:<{PASS}>@proxy-host1",
    f"{PASS}: see the vault",
    f"{PASS}: see vault item-42",
    f"{PASS}: required, at least 12 characters",
    f"{PASS}: 12-char minimum",
    f"{PASS}: rotated on 2026-03-04",
    f"{PASS}: 2026-03-04",
    f"{PASS}: string",
    f'"{PASS}": "string"',
    f'"{PASS}": "Enter your {PASS}"',
    f'<input type="{PASS}" name="{PASS}" id="{PASS}2">',
    f"The {PASS} is hashed with SHA256 and salted; {PASS}s are never stored.",
    f"The {PASS} is base64-encoded; ask whether the {PASS} is AES256 encrypted.",
    f"The {PASS} is AES256. The {PASS} is hashed2 times. The {PASS} is 12-char.",
    f"{PASS} Argon2Hasher, {PASS} OAuth2Provider",
    f"Reset the {PASS} in 1Password, entry db7.",
    f"Wrong {PASS}: user1@example.com could not log in",
    f'{PASS} = os.environ["DB_{PASS.upper()}2"]',
    f"{PASS}=getpass()",
    f"{PASS}=getpass.getpass('{PASS.title()}: ')",
    f"{PASS} = input('{PASS}: ')",
    f"connect(user=user, {PASS}={PASS})",
    f"{PASS}={PASS}2, {PASS}1 == {PASS}2",
    f"{PASS}=self.{PASS}, {PASS}=settings.DB2.{PASS.upper()}",
    f"{PASS}=args.pw2",
    f"{PASS}=user1_{PASS}",
    f"{PASS}: str | None = None",
    f"{PASS}: {{{{ vault_db1_{PASS} }}}}",
    f"{PASS}: {{{{ vault }}}}",
    f"{PASS}: !vault db1/{PASS}",
    f"{PASS}: !secret mqtt_{PASS}1",
    f"{PASS}: ${{DB1_{PASS.upper()}}}",
    f"{PASS}: $DB1_PW",
    f'{PASS}="$DB1_{PASS.upper()}"',
    f'{PASS}=f"{{user1}}-x"',
    f"{PASS}=$(pass show db1)",
    f"--{PASS} $PW1234",
    f"--{PASS}-stdin < file1",
    f"{PASS}: <{PASS}>",
    f"{PASS}=<your-{PASS}-1>",
    f"{PASS}: ********",
    f"{PASS}: '********'",
    f"{PASS}=xxxxxxxx",
    f"{PASS}=xxx",
    f"{PASS}=changeme",
    f"{PASS}: changeme123",
    f"{PASS}: example123",
    f"{PASS}: 'your-{PASS}'",
    f"{PASS}: your-{PASS}-123",
    f"{PASS}=",
    f'{PASS}=""',
    f"{PASS}: ••••••••1",
    f"{PASS}: op://vault1/db/{PASS}",
    f"{PASS}: /run/secrets/db1",
    f"{PASS}_file=/run/secrets/db1",
    f"{PASS}_hash: $2b$12$" + made(53),
    f"{PASS}.test_login2: passed",
    f"min_{PASS}_length = 123456",
    f"re.compile(r'{PASS}=(\\S+123)')",
    "PASS: test_login2.py",
    "pass: 12345678 tests, bypass: yes1234",
    "PWD=/home/user1",
    "secret: prod-db-credentials-2",
    "secret=db-creds-2",
    "secret: projects/my-proj-123/secrets/db-pass-2",
    "secretName: app1-tls",
    "The secret is that 12 of them were late.",
    "Ssh, the secret: nobody knows what happened in 2019!",
    "api_key: YOUR_API_KEY_HERE_12345678",
    "api_key=os.getenv('OPENAI_API_KEY_2')",
    'api_key: "${OPENAI_KEY_1234567890}"',
    "api_key=<paste1234567890abc>",
    "key: value12345678, primary key: 1234567890123456",
    "cache_key = " + hashlib.sha256(b"y").hexdigest(),
    "token count: 1234567890, max_tokens=12345678901234567890",
    "The tokenizer splits each token: 30522 of them.",
    "Authorization: Bearer $TOKEN_1234567890",
    "Authorization: Bearer <access-token-1234567>",
    "-----BEGIN CERTIFICATE-----\nMIIE\n-----BEGIN PUBLIC KEY-----\n",
    "Refuse `-----BEGIN RSA " + "PRIVATE KEY-----` in notes.",
    "https://example.com:8080/a@b http://[::1]:9000/x ssh://git@host:22/x.git",
    "postgres://user:" + PASS + "@host/db, postgres://$USER:$PASS1@host/db",
    "amqp://guest:guest@localhost, postgres://{user}:{pw12}@host",
    "cvs://:pserver:anoncvs@sources.example.org:/cvs/src",
    "https://<user>:<token1>@host",
    "task-based, risk-free, disk-usage-report-of-2026-03-04, sk-learn, sk-SK",
    '<div class="sk-toggleable__content-arrow-12"><a id="sk-container-id-1">',
    "hf_hub_download_with_timeout_and_retries(npm_config_registry_url_of_the_team)",
    "pypi-release-checklist-for-2026-03-04, glpattern-of-some-length-12345",
    "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx, sk-ant-xxxxxxxxxxxxxxxxxxxx, sk-ant-your-key-here",
    "a_very_long_identifier_with_2_digits(and_another_very_long_identifier_3)",
    "|------------------------|------------------------|",
]


@pytest.mark.parametrize("kind", TOKENS)
@pytest.mark.parametrize(
    "frame", ["{}", "token {}\n", "x='{}';", '"{}"', "({})", "a\n{}\nb", "={}."]
)
def test_token_is_refused(kind: str, frame: str) -> None:
    assert SHAPES.find(frame.format(TOKENS[kind]).encode())


@pytest.mark.parametrize("text", SECRET_TEXTS)
def test_saved_credential_is_refused(text: str) -> None:
    assert SHAPES.find(text.encode())
    assert SHAPES.find(f"# Notes\n\n{text}\n\nmore text\n".encode())


@pytest.mark.parametrize("text", CLEAN)
def test_clean_text_passes(text: str) -> None:
    assert SHAPES.find(text.encode()) is None


def test_clean_texts_pass_together() -> None:
    assert SHAPES.find("\n".join(CLEAN).encode()) is None


def test_detector_is_named_and_the_secret_is_not() -> None:
    token = TOKENS["github classic"]
    assert SHAPES.find(f"token {token}".encode()) == "GitHub token"
    with pytest.raises(SecretRefused) as error:
        screen(f"token {token}".encode(), SHAPES)
    assert "GitHub token" in str(error.value)
    assert token[4:] not in str(error.value)


def test_every_kind_of_buffer_is_scanned() -> None:
    data = TOKENS["npm"].encode()
    assert SHAPES.find(bytearray(data)) == SHAPES.find(memoryview(data)) == "npm token"


@pytest.mark.parametrize("kind", TOKENS)
def test_token_split_over_two_writes_is_found(kind: str) -> None:
    before, token, after = b"some text\n" * 900 + b"x ", TOKENS[kind].encode(), b"\nmore" * 900
    buffer = bytearray(before + token + after)
    for cut in (1, len(token) // 2, len(token) - 1):
        assert SHAPES.find_near(buffer, len(before) + cut, len(before) + cut + 1)
    assert SHAPES.find_near(buffer, 0, 10) is None


def test_token_in_one_long_line_is_found() -> None:
    token = TOKENS["discord"].encode()
    buffer = bytearray(b"ab, " * 9000 + token + b" cd" * 9000)
    assert SHAPES.find_near(buffer, 36010, 36011) == "Discord bot token"


def test_find_near_cuts_no_word_into_a_secret() -> None:
    buffer = bytearray(b"ta" + TOKENS["openai old"].encode() + b" " + b"x" * 3000)
    assert SHAPES.find(buffer) is None
    for start in range(2 + 1024 - 40, 2 + 1024 + 60):
        assert SHAPES.find_near(buffer, start, start + 1) is None


# ------------------------------------------------------------------------------------- registered


def record(secret: str, name: str = "db") -> SecretRecord:
    return register(name, secret, Time(5))


SECRETS = st.text(
    st.characters(exclude_categories=["Cs"]), min_size=SECRET_MIN_CHARS, max_size=60
).filter(lambda text: len(text.strip()) >= SECRET_MIN_CHARS and len(set(text.strip())) > 1)


@examples
@given(SECRETS, st.binary(max_size=300), st.binary(max_size=300))
def test_registered_secret_is_found_anywhere(secret: str, before: bytes, after: bytes) -> None:
    scanner = Scanner((record(secret),))
    data = before + secret.strip().encode() + after
    assert scanner.find(data) == "registered secret 'db'"


@examples
@given(SECRETS, st.data())
def test_registered_secret_split_over_writes_is_found(secret: str, data: st.DataObject) -> None:
    scanner, raw = Scanner((record(secret),)), secret.strip().encode()
    at = data.draw(st.integers(0, 5000))
    buffer = bytearray(b"word " * 1000 + b"\n" + b"w" * 4000)
    buffer[at : at + len(raw)] = raw
    cut = data.draw(st.integers(0, len(raw) - 1))
    assert scanner.find_near(buffer, at + cut, at + cut + 1)


def test_longest_registered_secret_is_found_near_a_write() -> None:
    secret = "".join(f"line {n}\n" for n in range(900))[:SECRET_MAX_CHARS].strip()
    scanner = Scanner((record(secret),))
    buffer = bytearray(b"a\n" * 5000 + secret.encode() + b"\nb" * 5000)
    assert scanner.find_near(buffer, 10_000 + len(secret) - 1, 10_000 + len(secret))
    assert scanner.find_near(buffer, 10_000, 10_001)


def test_overlapping_candidates_are_all_tried() -> None:
    scanner = Scanner((record("aaaaaaab"),))
    assert scanner.find(b"aaaaaaaaaaaaaaab")
    assert scanner.find(b"aaaaaaaaaaaaaaac") is None


def test_one_of_several_registered_secrets_is_named() -> None:
    scanner = Scanner((record("blue-grass", "one"), record("red-grass", "two")))
    assert scanner.find(b"the red-grasshopper") == "registered secret 'two'"
    assert scanner.find(b"the red-gras, the blue-gras") is None


def test_white_space_around_a_registered_secret_does_not_count() -> None:
    assert Scanner((record("\tblue-grass\n"),)).find(b"xblue-grassx")


def test_record_does_not_reveal_the_secret() -> None:
    made_record = record("blue-grass")
    assert "blue" not in repr(made_record)
    assert (made_record.length, made_record.created_at) == (10, 5)
    assert [len(set(values)) for values in made_record.decoys] == [16] * 4
    again = record("blue-grass")
    assert made_record.digest != again.digest
    assert made_record.decoys != again.decoys


@pytest.mark.parametrize(
    "secret", ["", "2short!", "  2short!   ", "x" * 20, "é" * 8, "x1" * 2049, "ab\udc80defghi"]
)
def test_unfit_credential_is_not_registered(secret: str) -> None:
    with pytest.raises(Invalid) as error:
        record(secret)
    assert not secret.strip() or secret.strip() not in str(error.value)


# ----------------------------------------------------------------------------------------- screen


def test_screened_text_keeps_its_bytes() -> None:
    data = "naïve\r\n\0 text".encode()
    text = screen(data, SHAPES)
    assert (text.data, text.sha256) == (data, hashlib.sha256(data).hexdigest())
    assert screen(b"", SHAPES).size_bytes == 0


def test_size_is_checked_first() -> None:
    assert screen(b"a" * NOTE_BYTES, SHAPES).size_bytes == NOTE_BYTES
    with pytest.raises(TextTooLong):
        screen(b"\xff" * (NOTE_BYTES + 1), SHAPES)


@pytest.mark.parametrize("data", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\x80"])
def test_binary_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidText):
        screen(data, SHAPES)


@examples
@given(st.text(max_size=40), st.data())
def test_every_slice_of_text_can_become_utf8(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    assert can_become_utf8(raw[start:end])


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"a\x80", b"\x80" * 4, b"a\xc3b", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5", b"\xe0\x80"],
)
def test_binary_cannot_become_utf8(data: bytes) -> None:
    assert not can_become_utf8(data)
