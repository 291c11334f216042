"""Texts that hold no credential (SEMANTICS: Secrets); only `screen` makes a `Text`.

Two detectors, both by bytes: credentials that a person registered, recognised by a salted digest,
and known shapes: tokens with a tell-tale prefix, private keys, passwords in URLs, and assignments
such as `password=…` whose value looks like a real one. Prose about passwords, code that fetches
them, digests and ids must pass: a detector that cries wolf gets switched off.

Speed decides the form. A search for a fixed start costs about 0.7 µs per 2 KiB, an alternation of
all starts ten times that. Tokens therefore are looked for only inside the rare long runs of token
characters, which `bytes.translate` and `bytes.find` locate, and every other expression starts with
its keyword.
"""

import codecs
import re
from dataclasses import dataclass
from hashlib import blake2b, sha256
from secrets import SystemRandom, token_bytes

from memfs.errors import Invalid, InvalidText, SecretRefused, TextTooLong
from memfs.limits import NOTE_BYTES, SECRET_MAX_CHARS, SECRET_MIN_CHARS
from memfs.types import Sha256, Text, Time

# ---------------------------------------------------------------------------- tokens in long runs

_RUN = b"a" * 20  # the shortest token has 20 token characters: an AWS key id
_RUN_CLASS = bytes(97 if chr(c).isalnum() or c in b"-_" else 32 for c in range(128)) + b" " * 128

# Found anywhere in a run where a word starts: name, start, rest.
_TOKENS = (
    ("GitHub token", rb"gh[pousr]_", rb"[A-Za-z0-9]{20}"),
    ("GitHub token", rb"github_pat_", rb"[A-Za-z0-9_]{20}"),
    ("GitLab token", rb"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-", rb"[\w-]{16}"),
    ("Slack token", rb"xox[a-z]-", rb"[A-Za-z0-9-]{10}"),
    ("Slack token", rb"xapp-", rb"\d-[A-Za-z0-9-]{10}"),
    ("Anthropic API key", rb"sk-ant-", rb"[\w-]{13}"),
    ("payment key", rb"[sr]k[-_](?:live|test|prod)[-_]", rb"[A-Za-z0-9]{10}"),
    ("payment key", rb"whsec_", rb"[A-Za-z0-9]{10}"),
    ("OpenAI API key", rb"sk-(?:proj|svcacct|admin|or-v1)-", rb"[\w-]{12}"),
    ("OpenAI API key", rb"sk-", rb"[A-Za-z0-9]{32}"),
    ("OpenAI API key", rb"sk-", rb"(?=[a-z]*\d)(?=[a-z0-9]*[A-Z]|(?:[a-z]*\d){4})[A-Za-z0-9]{17}"),
    ("AWS access key id", rb"A[KS]IA", rb"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("Google API key", rb"AIza", rb"[\w-]{35}"),
    ("Google client secret", rb"GOCSPX-", rb"[\w-]{20}"),
    ("Hugging Face token", rb"hf_", rb"[A-Za-z0-9]{30}"),
    ("npm token", rb"npm_", rb"[A-Za-z0-9]{30}"),
    ("PyPI token", rb"pypi-", rb"(?:AgE|[A-Za-z0-9]{32})[\w-]{13}"),
    ("Twilio key", rb"SK", rb"[0-9a-f]{32}(?![A-Za-z0-9])"),
    ("Telegram bot token", rb"A(?<=[0-9]{6}:A)", rb"[\w-]{34}(?![\w-])"),
    ("model provider key", rb"gsk_", rb"[A-Za-z0-9]{24}"),
    ("model provider key", rb"xai-", rb"[A-Za-z0-9]{24}"),
    ("model provider key", rb"pplx-", rb"[A-Za-z0-9]{24}"),
    ("DigitalOcean token", rb"do[opr]_v1_", rb"[0-9a-f]{32}"),
    ("Shopify token", rb"shp(?:at|ca|pa|ss)_", rb"[0-9a-fA-F]{32}"),
    ("memfs key", rb"memfs_", rb"(?=[\w-]*?[A-Z])(?=[\w-]*?[a-z])[\w-]{43}"),
    ("age secret key", rb"AGE-SECRET-KEY-1", rb"[A-Z0-9]{30}"),
)
# Found where a run starts that has a dot beside it: name, shape.
_DOTTED = (
    ("JSON web token", rb"eyJ[\w-]{17,4000}\.eyJ[\w-]{8,4000}\.[\w-]{16}"),
    ("SendGrid key", rb"(?<=SG\.)[\w-]{20,24}\.[\w-]{20}"),
    ("Vault token", rb"(?<=hv[sb]\.)[\w-]{24}"),
    ("Discord bot token", rb"[MNO][A-Za-z0-9]{22,27}\.[\w-]{6,7}\.[\w-]{27}"),
)
# Most runs are clean: a union of the starts alone, without groups, is searched 30 times faster.
_STARTS = re.compile(b"|".join(start for _, start, _ in _TOKENS))
_find_token = re.compile(
    # a word also starts after an escaped newline
    rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?:%b)"
    % b"|".join(b"(%b%b)" % (start, rest) for _, start, rest in _TOKENS)
).search
_match_dotted = re.compile(b"|".join(b"(%b)" % shape for _, shape in _DOTTED)).match
_TOKEN_STAND_IN = re.compile(rb"xxxx|your[-_]|[-_]here|\.\.", re.IGNORECASE)

# ------------------------------------------------------------------------- expressions by keyword

_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    # the header in the middle of a sentence is prose about keys
    rb"(?=[ \t]*(?:\r?\n|\\+[nr]|\Z|[A-Za-z0-9+/]{20}))"
)
_URL = re.compile(
    rb"://(?:(?P<user>[^\s/:@\"'`<>()]{0,200}):(?P<password>[^\s/@\"'`<>()]{4,200})@[\w\[]"
    rb"|(?P<hook>hooks\.slack\.com/services/\w+/\w+/\w{16}"
    rb"|(?:\w+\.)?discord(?:app)?\.com/api/webhooks/\d+/[\w-]{40}))"
)

# These run over the lower-cased text. _TO_VALUE: from the end of a key to that of its value.
_TO_VALUE = (
    rb"[\]\"'`*_)\\]{0,4}(?:[ \t]*(?P<op>=>|:=|={1,2}|:[ \t]*str(?:ing)?[ \t]*=|[:|>])"
    rb"|(?:[ \t]+(?P<verb>is|was))?(?=[ \t]+[^\s\d]{0,99}\d))[ \t*_]*"
    rb"(?:[rbuf]{0,2}(?P<quote>\\?[\"'`]))?(?P<value>(?(quote)[^\"'`\\\r\n]|[^\s\"'`;,|<>\\]){4,300})"
)
_PASSWORD = re.compile(rb"pass(?P<word>w(?:or[dt]|d)|phrase|code|)" + _TO_VALUE)
_PWD = re.compile(rb"p(?P<word>wd)" + _TO_VALUE)
_SECRET = re.compile(rb"secret(?:[_-]?(?:access[_-]?)?key|[_-]?token)?" + _TO_VALUE)
_KEY = re.compile(
    rb"key(?:(?<=api[_ .-]key)|(?<=apikey)|(?<=access[_-]key)|(?<=accesskey)|(?<=account[_-]key)"
    rb"|(?<=accountkey)|(?<=auth[_-]key)|(?<=private[_-]key)|(?<=signing[_-]key)"
    rb"|(?<=encryption[_-]key)|(?<=master[_-]key)|(?<=service[_-]key))" + _TO_VALUE
)
_TOKEN = re.compile(  # not a position in a listing
    rb"token(?<!(?:page|next|sync|csrf)[_-]token)(?<!(?:page|next|sync)token)"
    rb"(?<!(?:resume|update)[_-]token)(?<!continuationtoken)(?<!continuation[_-]token)"
    rb"(?<!starting[_-]token)" + _TO_VALUE
)
_AWS = re.compile(
    rb"secret_?access_?key[\"'`]?[ \t]*[:=][ \t]*[\"'`]?[a-z0-9/+]{40}(?![a-z0-9/+=])"
)
_AUTHORIZATION = re.compile(
    rb"authorization[\"'`]?[ \t]*[:=][ \t]*[\"'`]?(?:bearer|basic|token|bot)[ \t]+"
    rb"(?P<value>[^\s\"'`;,<>&\\]{12,2000})"
)

# ------------------------------------------------------------------------- which values look real

_STAND_IN = re.compile(  # in lower case: says that the value is elsewhere or left out
    rb"^(?:(?:your|my|the|an?|some|any|user|db|new|old|admin|root|no|super)?[-_. ]?"
    rb"(?:pass(?:w(?:or[dt]|d))?|passphrase|secret|pwd?|token|key|value|string|user|foo|bar)"
    rb"[12]?$"
    rb"|your|change|example|placeholder|redacted|dummy|sample|insert|enter|replace|masked|hidden"
    rb"|removed|fixme|todo|see[-_ ]|not[-_ ]|use[-_ ]|ask[-_ ]|stored|unset|unknown|required"
    rb"|optional|disabled|default|incorrect|invalid|forgotten|unchanged|protected|encrypted|varchar"
    rb"|%s|%\(|%\w+%$|\$(?:[a-z_{(]|\d$)|[{\[(<]|!\w+$|\*\w|[?:@]\w*$"
    rb"|(?:vault|op|env|ref|arn|secret|kms|file|ssm|pass|keyring|keychain|bitwarden|lastpass"
    rb"|1password|https?|s?ftp|sha\d*|md5)[:/])"
    rb"|xxx|\*\*\*|\.\.\.|___|example|placeholder|redacted|changeme|\$\{|\{\{|#\{"
    rb"|\xe2\x80\xa2|\xe2\x80\xa6"  # bullets and the ellipsis
)
_CODE = re.compile(  # in lower case, values without quotes: an expression, a path, an ordinary word
    rb"[(\[{]|^[~./\\]|^[a-z_]\w*(?:\.[a-z_]\w*)+[.:]?$|^[a-z_]\w*(?:->|::)"
    rb"|^(?:pass|pw)\w*_|^[a-z]\w*_(?:pass|pw|secret|key|token)\w*$"  # names of variables
    rb"|^v?\d+(?:[.:/-]\d+)+|^\d+[-_]?[a-z]+(?:-[a-z]+)*$|^[a-z]+-\d+$"  # versions, dates, units
    rb"|sha-?\d|md5|aes-?\d|argon2|bcrypt|scrypt|pbkdf2|base64|utf-?8|oauth|1password|[^@]@[\w.-]+\."
    rb"|vault|keychain|keyring"
)
_LETTER = re.compile(rb"[A-Za-z\x80-\xff]")
_DIGIT = re.compile(rb"[0-9]")
_SYMBOL = re.compile(rb"[!$%^&*#@?+~](?!$)")  # not the end of a sentence
_RARE_SYMBOL = re.compile(rb"\w[!$%^&*]+\w")
_SENTENCE_END = re.compile(rb"[.,;:)!]?(?:[\r\n]|\Z)|[.,;:)!]\s")
_RANDOM = re.compile(rb"[A-Za-z0-9/+]{12,}")
_ULID = re.compile(rb"[0-7][0-9A-HJKMNP-TV-Z]{25}")


def _stands_in(value: bytes, quoted: bool) -> bool:
    lower = value.lower()
    return (
        len(set(value)) < 3
        or _STAND_IN.search(lower) is not None
        or (not quoted and _CODE.search(lower) is not None)
    )


def _is_password(data: bytes, match: re.Match[bytes]) -> bool:
    """True if *match* of _PASSWORD or _PWD assigns something that a person would type."""
    value, op, quoted = _value(data, match), match["op"], match["quote"] is not None
    if len(value) < 6 or b" " in value:
        return False
    if not match["word"] and op != b"=":
        return False  # 'PASS: test_login2' is the report of a test
    if op == b">" and data[match.end("value") : match.end("value") + 2] != b"</":
        return False  # '<password>@host' stands for a password
    digit, letter = _DIGIT.search(value), _LETTER.search(value)
    if op is None and not _is_flag(data, match):  # prose
        # 'the password is hunter2.' says one, 'the password is base64 encoded' does not
        said = match["verb"] and _SENTENCE_END.match(data, match.start("value") + len(value))
        real = bool(digit and letter and (quoted or said or _RARE_SYMBOL.search(value)))
    elif digit or not letter:
        real = digit is not None
    elif _SYMBOL.search(value):
        real = True
    elif value.isupper() or b"passw" in value.lower():
        real = False  # NO_PASSWORD = "no-password-required"
    elif value.count(b"-") >= 3:
        real = len(value) >= 20  # correct-horse-battery-staple
    else:
        # a word: as a literal in code or in an environment file, not a type or a variable's name
        shouted = data[match.start() : match.end("word")].isupper()
        tight = data[match.start("value") - 1] == ord("=")
        real = op == b"=" and len(value) >= 8 and (quoted or (shouted and tight))
    return real and not _stands_in(value, quoted)


def _is_flag(data: bytes, match: re.Match[bytes]) -> bool:
    """True for the option of a command: --password VALUE, --db-password VALUE."""
    return data[max(match.start() - 24, 0) : match.start()].rpartition(b" ")[2].startswith(b"--")


def _is_random(value: bytes, least: int) -> bool:
    """True if *value* has a part of *least* characters that only a machine would make."""
    for run in _RANDOM.findall(value):
        digits = len(_DIGIT.findall(run))
        lower, upper = run != run.upper(), run != run.lower()
        enough = least if lower and upper else max(least, 16)
        if len(run) >= enough and digits >= (2 if upper else 3) and not _ULID.fullmatch(run):
            return True
    return False


def _is_key(data: bytes, match: re.Match[bytes]) -> bool:
    """True if *match* of _SECRET, _KEY or _TOKEN assigns something that only a machine makes."""
    value, op, quoted = _value(data, match), match["op"], match["quote"] is not None
    if b" " in value or value.startswith((b"/", b".")) or _ULID.search(value):
        return False
    token = match.re is _TOKEN
    found = _is_random(value, 20 if token or op is None else 12)
    if not found and not token and (quoted or op == b"=") and op is not None:
        # typed by a person: no separators, or it is the name of a secret (prod-db-2)
        found = value.isalnum() and bool(_DIGIT.search(value) and _LETTER.search(value))
        found = found and len(value) >= (8 if quoted else 7)
    return found and not _stands_in(value, quoted)


def _value(data: bytes, match: re.Match[bytes]) -> bytes:
    start, end = match.span("value")
    value = data[start:end].rstrip(b".,:)]}")
    # a query string goes on after '&', a password may too, but has said enough by then
    return value.partition(b"&")[0] if match["op"] == b"=" else value


def _is_public(password: bytes) -> bool:
    """Whether it is what anonymous access uses, as in cvs://:pserver:anoncvs@host."""
    return password.rpartition(b":")[2].lower() in (b"anoncvs", b"anonymous", b"anon", b"guest")


def _url(data: bytes) -> str | None:
    for match in _URL.finditer(data):
        if match["hook"]:
            return "webhook URL"
        user, password = match["user"], match["password"]
        if password != user and not _stands_in(password, quoted=True) and not _is_public(password):
            return "password in a URL"
    return None


def _assigned(data: bytes) -> str | None:
    lower = data.lower()
    for expression in (_PASSWORD, _PWD):
        for match in expression.finditer(lower):
            if _is_password(data, match):
                return "password assignment"
    for name, expression in (("secret", _SECRET), ("API key", _KEY), ("token", _TOKEN)):
        for match in expression.finditer(lower):
            if _is_key(data, match):
                return f"{name} assignment"
    if _AWS.search(lower):
        return "AWS secret access key"
    for match in _AUTHORIZATION.finditer(lower):
        value = data[match.start("value") : match.end("value")]
        if _is_random(value, 12) and not _stands_in(value, quoted=True):
            return "authorization header"
    return None


def _token(data: bytes) -> str | None:
    runs = data.translate(_RUN_CLASS)
    start = runs.find(_RUN)
    while start >= 0:
        end = runs.find(b" ", start + len(_RUN))
        end = end if end >= 0 else len(data)
        start += data[start - 1 : start] == b"\\"  # the n of an escaped newline
        # a digest or id of one word is looked at only where it starts
        look = _STARTS.match if data[start:end].isalnum() else _STARTS.search
        names, match = _TOKENS, look(data, start, end) and _find_token(data, start, end)
        if match is None and b"." in (data[start - 1 : start], data[end : end + 1]):
            names, match = _DOTTED, _match_dotted(data, start)
        if match and match.lastindex and not _TOKEN_STAND_IN.search(data, start, end):
            return names[match.lastindex - 1][0]
        start = runs.find(_RUN, end)
    return None


# --------------------------------------------------------------------------- registered credentials

_PREFIX_BYTES = 4
_DECOYS = 16  # values a byte of the prefix may have, the true one among them
# Decoys come from all of a class, so that a set does not tell letters from digits.
_CLASSES = (range(0x20, 0x7F), (*range(0x20), 0x7F), range(0x80, 0xF5))


@dataclass(frozen=True, slots=True)
class SecretRecord:
    """What recognises a registered credential without revealing it.

    decoys: for each of the first bytes of the credential, 16 values it may have. With length they
    say where a digest is worth computing, and cost about 2.6 bits of secrecy a byte.
    """

    name: str
    created_at: Time
    length: int  # bytes
    salt: bytes
    decoys: tuple[bytes, ...]
    digest: bytes  # blake2b-256 of salt and credential


def register(name: str, secret: str, now: Time) -> SecretRecord:
    """Return what recognises *secret*; white space around it (a pasted newline) is not part of it.

    Raises: Invalid.
    """
    secret = secret.strip()
    if not SECRET_MIN_CHARS <= len(secret) <= SECRET_MAX_CHARS:
        raise Invalid(
            f"a credential has {SECRET_MIN_CHARS} to {SECRET_MAX_CHARS} characters: shorter ones "
            "would be found in ordinary text"
        )
    if len(set(secret)) == 1:
        raise Invalid("one repeated character would be found in ordinary text; check the input")
    try:
        data = secret.encode()
    except UnicodeEncodeError:
        raise Invalid("the credential is not UTF-8 text; encode it first") from None
    salt = token_bytes(16)
    return SecretRecord(
        name=name,
        created_at=now,
        length=len(data),
        salt=salt,
        decoys=tuple(_among_decoys(byte) for byte in data[:_PREFIX_BYTES]),
        digest=_digest(data, salt),
    )


def _among_decoys(byte: int) -> bytes:
    others = [other for kind in _CLASSES if byte in kind for other in kind if other != byte]
    return bytes(sorted([byte, *SystemRandom().sample(others, _DECOYS - 1)]))


def _digest(data: bytes, salt: bytes) -> bytes:
    return blake2b(data, digest_size=32, salt=salt).digest()


class Registered:
    """Finds one registered credential."""

    def __init__(self, record: SecretRecord) -> None:
        self.record = record
        first, *others = (b"[%b]" % re.escape(values) for values in record.decoys)
        # the match is one byte long: candidates may overlap
        self.candidates = re.compile(b"%b(?=%b)" % (first, b"".join(others))).finditer

    def found_in(self, data: bytes) -> bool:
        """Return whether a text holds it."""
        length, salt, digest = self.record.length, self.record.salt, self.record.digest
        return any(
            _digest(data[match.start() : match.start() + length], salt) == digest
            for match in self.candidates(data, 0, max(len(data) - length + _PREFIX_BYTES, 0))
        )


# -------------------------------------------------------------------------------------- the scanner

_CONTEXT = 1024  # bytes around a write, before it is widened to whole lines


class Scanner:
    """Finds credentials: the registered ones of *records*, and the known shapes."""

    def __init__(self, records: tuple[SecretRecord, ...] = ()) -> None:
        self._registered = tuple(map(Registered, records))
        self._context = max([_CONTEXT, *(record.length for record in records)])

    def find(self, data: bytes | bytearray | memoryview) -> str | None:
        """Return the name of the first detector that fires, never what it found; None: clean."""
        data = bytes(data)
        for credential in self._registered:
            if credential.found_in(data):
                return f"registered secret {credential.record.name!r}"
        if _PRIVATE_KEY.search(data):
            return "private key"
        return _token(data) or _assigned(data) or _url(data)

    def find_near(self, buffer: bytearray, start: int, end: int) -> str | None:
        """As `find`, for the whole lines around a write to buffer[start:end].

        Also what an earlier write began, or a later part of the text completes, is found. Nothing
        is found here that `find` would not find in the whole buffer.
        """
        low = buffer.rfind(b"\n", 0, max(start - self._context, 0)) + 1
        high = buffer.find(b"\n", end + self._context)
        return self.find(buffer[low : high + 1 if high >= 0 else len(buffer)])


def screen(data: bytes, scanner: Scanner) -> Text:
    """Return *data* as the text of a note.

    Raises: TextTooLong, InvalidText, SecretRefused; none of them says what the text holds.
    """
    if len(data) > NOTE_BYTES:
        raise TextTooLong(f"the text has {len(data)} bytes; split it into notes of {NOTE_BYTES}")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise InvalidText(
            f"the text is not UTF-8 at byte {error.start}; a note holds text, not binary data"
        ) from None
    if (name := scanner.find(data)) is not None:
        raise refusal(name)
    return Text(data, Sha256(sha256(data).hexdigest()))


def refusal(name: str) -> SecretRefused:
    """Return what every door says of a text in which the detector *name* fired."""
    return SecretRefused(
        f"the text seems to hold a credential ({name}); leave the credential out and write where "
        "it is kept"
    )


def can_become_utf8(data: bytes) -> bool:
    """True if *data* may be a slice of UTF-8 text, cut anywhere, also within a character."""
    begin = 0
    while begin < min(len(data), 3) and data[begin] & 0xC0 == 0x80:
        begin += 1
    try:
        codecs.utf_8_decode(data[begin:], "strict", False)
    except UnicodeDecodeError:
        return False
    return True
