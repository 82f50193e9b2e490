"""Planted secrets that neither a bundle nor redacted rows may hold, and look-alikes that both leave."""

from __future__ import annotations

import random
from base64 import b64encode
from collections import Counter
from urllib.parse import quote

import pytest

from holdfast.data.collect.redact import redact
from holdfast.privacy.scrub import Person, Scrubber

DRAWN = random.Random(7)
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def drawn(count: int, of: str = LETTERS + "23456789") -> str:
    """Random characters, with one of each sort where there are sorts."""
    return "".join(DRAWN.choice(of) for _ in range(count - 3)) + ("aB3" if of == LETTERS + "23456789" else of[-3:])


HEX = "0123456789abcdef"
PREFIXED = {
    "r8_": (37, ""),
    "lsv2_pt_": (32, HEX),
    "gsk_": (52, ""),
    "nvapi-": (64, ""),
    "dapi": (32, HEX),
    "SK": (32, HEX),
    "xai-": (80, ""),
    "pplx-": (48, ""),
    "csk-": (48, ""),
    "tgp_v1_": (43, ""),
    "dop_v1_": (64, HEX),
    "ATATT3": (60, ""),
    "shpat_": (32, HEX),
    "glsa_": (41, ""),
    "ya29.": (60, ""),
    "dckr_pat_": (27, ""),
    "hvs.": (24, ""),
    "whsec_": (32, ""),
    "GOCSPX-": (28, ""),
    "pcsk_": (60, ""),
    "jina_": (60, ""),
    "sk-proj-": (48, ""),
    "sk-ant-": (48, ""),
    "ghp_": (36, ""),
    "glpat-": (20, ""),
    "npm_": (36, ""),
    "AIza": (35, ""),
    "sk_live_": (24, ""),
    "AKIA": (16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    "rpa_": (40, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    "123456789:AA": (33, ""),
    "xapp-1-A012-345-": (60, ""),
    "key-": (32, HEX),
    "hf_oauth_": (60, ""),
    "AGE-SECRET-KEY-1": (58, "ABCDEFGHJKLMNPQRSTUVWXYZ234567"),
    "tskey-auth-": (30, ""),
    "lin_api_": (40, ""),
    "ntn_": (46, ""),
    "figd_": (45, ""),
    "PMAK-": (58, ""),
    "rubygems_": (48, HEX),
    "dp.pt.": (43, ""),
    "new_maker_": (40, ""),
}
PLANTED = [("said {} twice", prefix + drawn(count, of or LETTERS + "23456789")) for prefix, (count, of) in PREFIXED.items()]
PLANTED += [
    ("{}", drawn(40)),
    ("credentials {} for the bucket", drawn(38) + "/+"),
    ("DefaultEndpointsProtocol=https;AccountName=x;AccountKey={};EndpointSuffix=y", drawn(86) + "=="),
    ("Endpoint=sb://x;SharedAccessKey={}", drawn(43) + "="),
    ("$ wandb login {}", drawn(40, HEX)),
    ("$ wandb login --relogin {}", drawn(40, HEX)),
    ("wandb.login(key='{}')", drawn(40, HEX)),
    ("machine api.wandb.ai login user password {}", drawn(40, HEX)),
    ("machine api.wandb.ai\n  login user\n  password {}", drawn(40, HEX)),
    ("machine x\nlogin y\npassword {}\n", "tiger-lily"),
    ("POST https://hooks.slack.com/services/{}", "T0AB1CD2E/B0AB1CD2E/" + drawn(24)),
    ("POST https://discord.com/api/webhooks/{}", "123456789012345678/" + drawn(68)),
    ("POST https://x.webhook.office.com/webhookb2/{}", drawn(36) + "@" + drawn(36)),
    ("GET https://api.telegram.org/bot{}/getMe", "1234567890:" + drawn(35)),
    ('{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{}"}}}}}}', b64encode(b"me:tiger-lily").decode()),
    ('{{"identitytoken":"{}"}}', drawn(36)),
    ("//registry.npmjs.org/:_authToken={}", drawn(36)),
    ("sshpass -p {} ssh host", "tiger-lily1"),
    ("sshpass -p'{}' ssh host", "tiger-lily1"),
    ("mysql -u root -p{} db", "tiger-lily1"),
    ("mysqldump --single-transaction -p{} db", "tiger-lily1"),
    ("redis-cli -h x -a {} ping", "tiger-lily1"),
    ("curl -s -u me:{} https://x.org", "tiger-lily1"),
    ("Set-Cookie: {}; Path=/", "session=" + drawn(24)),
    ("Cookie: {}", "a=1; sid=" + drawn(24)),
    ("https://x.org/login?next=%2Fa%3Ftoken%3D{}", drawn(24)),
    ("api_key:\n  {}\n", drawn(24)),
    ("Your access key\n{}\n", drawn(24)),
    ("export FOO={}", drawn(40)),
    ("session: {}", drawn(32)),
    ("password={}", "tiger-lily1"),
    ("MY_API_KEY: {}", drawn(20)),
    ("docker login -u me -p {} registry.example.org", "tiger-lily1"),
    ("openssl rsa -passin pass:{} -in k.pem", "tiger-lily1"),
    ("zip -P {} a.zip b", "tiger-lily1"),
    ("rsync --password-file=<(echo {}) a b", "tiger-lily1"),
    ("curl --oauth2-bearer {} https://x.org", drawn(24)),
    ("gpg --passphrase {} -d x", "tiger-lily1"),
    ("sudo -S <<< {}", "tiger-lily1"),
    ("sudo -S <<< {} id; echo and once more sudo -S <<< x", "tiger-lily1"),
    ("echo {} | docker login --password-stdin", "tiger-lily1"),
    ("ngrok config add-authtoken {}", drawn(43)),
    ('{{"username":"x","key":"{}"}}', drawn(32, HEX)),
    ('{{\\"username\\":\\"x\\",\\"key\\":\\"{}\\"}}', drawn(32, HEX)),
    ("X-Vault-Token: {}", "s." + drawn(24)),
    ("pwd={};", "tiger-lily1"),
    ("pass = {}", "tiger-lily1"),
    ("bindpw {}", "tiger-lily1"),
    ("Password for user: {}", "tiger-lily1"),
    ("my password is {}", "tiger-lily1"),
    ("VAST_API_KEY {}", drawn(64, HEX)),
    ('os.environ["OPENAI_API_KEY"] = "{}"', "sesame-" + drawn(12)),
    ('os.environ[\\"OPENAI_API_KEY\\"] = \\"{}\\"', "sesame-" + drawn(12)),
    ('passphrase \\"{}\\"', "tiger-lily1"),
    ("https://me:{}@x.org/", "tiger-lily1"),
    ("Authorization: Bearer {}", drawn(30)),
]
INNOCENT = [
    "docker run -u root -p 8080:80/tcp image",
    "sudo -u me mkdir -p /data/x",
    "ssh -p 2222 host",
    "notes: |\n  the token was long",
    "commit 5d809c9f0e1d2c3b4a5968778695a4b3c2d1e0f9",
    "sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "run.id = 3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "enter your password to go on",
    "the password was wrong, try again",
    "threading.local() of torch._C._distributed_c10d",
    "model: meta-llama/Llama-3.1-8B-Instruct",
    "model.layers.31.self_attn.q_proj.lora_A.default.weight",
    "base_model: NousResearch/Hermes-2-Pro-Mistral-7B",
    "checkpoint: /data/models/Qwen2.5-Coder-7B-Instruct/model-00001-of-00004.safetensors",
    "path=/usr/local/lib/python3.11/site-packages/torch/nn/modules/module.py",
    "url: https://github.com/huggingface/transformers/issues/12345",
    "torch==2.13.0+cu126",
    "nvidia-cublas-cu12==12.4.5.8",
    "CUDA_VISIBLE_DEVICES=0,1,2,3",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "GPU-8a56a4bc-e184-a047-2620-be19fdf913d5",
    "0000:03:00.0 amdgpu",
    "_ZN2at6native12_GLOBAL__N_119gemm_and_bias_kernelE",
    "KeyError: 'input_ids'",
    "skipped 12 rows, sk-learn and r8_quantised",
    "dapi is an API, gsk_ a prefix",
    "Qwen2ForCausalLMWithValueHeadAndRewardModel",
    "at::native::VectorizedElementwiseKernelLaunchConfig",
    "loss=1.2345678901234567",
    "eval_loss: 0.123456789",
    "tokens_per_second: 12345.678901234567",
    "max_tokens: 512",
    "eos_token: <|im_end|>",
    "step 100: 1:23:45 of 12:34:56",
    "2026-11-23T09:06:42.123456Z start",
    "the cookie jar is empty",
    "mysql is not installed, -p is a flag",
    "curl -sSL https://x.org/install.txt",
    "redis-cli ping",
    "author: somebody, auth: none",
    "use of fd 7 and fe 8",
    "std::unordered_map<unsigned long, at::Tensor>",
    "MIOpen(HIP): Warning [SQLiteBase] Missing system database file: gfx1100_48.kdb",
    "triton_poi_fused_add_native_layer_norm_backward_12",
    "hipErrorNoBinaryForGpu: Unable to find code object for all current devices!",
    "NCCL_SOCKET_IFNAME=eth0 NCCL_DEBUG=INFO",
    "PWD=/home/user/project1",
    "pass = 3, and pass: 12 of 20",
    "second pass: 0.31 s",
    "the password for 'https://github.com': is asked for",
    "password is not set",
    "docker login and docker pull",
    "zip -r a.zip folder1",
    "echo done1 | tee log",
    "X-Request-Id: 7f3a9b21",
    "undefined symbol: _ZN3c1021throwNullDataPtrErrorEv",
    "libtorch_cuda.so: _ZN2at4_ops10zeros_like4callERKNS_6TensorE",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x16_stage6",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_32x6_tn_align8>",
    "key: 'model.layers.0.self_attn.q_proj.weight'",
    "Cijk_Alik_Bljk_HHS_BH_MT128x128x16_MI16x16x16x1_SN_K1",
]


@pytest.mark.parametrize(("line", "secret"), PLANTED, ids=[f"{at} {line[:30]}" for at, (line, _) in enumerate(PLANTED)])
def test_a_planted_secret_is_taken_out_of_bundles_and_rows(line: str, secret: str) -> None:
    for text in (Scrubber(Person()).text(line.format(secret)), redact(line.format(secret), "secrets", Counter())):
        assert secret not in text and secret[-8:] not in text, text


BLOCKS = [
    "client_secret: >-\n  {}\nnext: 1",
    "  api_key: |\n    {}\n  next: 1",
    "- password: |+2 # mine\n    {}",
    "db:\n  token: >\n\n    first line\n    {}\nnext: 1",
    "twine upload -u me -p {} dist/*",
    "az login -u me@x -p {}",
    "helm registry -p '{}' --username me",
    "oc login --username=dev -p {}",
]


@pytest.mark.parametrize("form", BLOCKS)
@pytest.mark.parametrize("secret", ["correct horse battery", "hunter-two", "N0t/so:simple"])
def test_a_secret_of_any_form_goes_where_its_place_tells_it(form: str, secret: str) -> None:
    secret = secret if ":" in form.split("{")[0] and "-p" not in form else secret.replace(" ", "-")
    if "first line" in form:
        form = form.replace(">\n\n", ">\n")
    text = Scrubber(Person()).text(form.format(secret))
    assert secret not in text and ("next: 1" in text) == ("next: 1" in form), text


def test_a_pgp_key_goes_whole_and_so_do_the_ids_of_keys() -> None:
    body = "\n".join("lQdGBGVx" + drawn(56) for _ in range(20))
    key = f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n{body}\nqZ1k\n=aB3d\n-----END PGP PRIVATE KEY BLOCK-----"
    for text in (Scrubber(Person()).text(f"a\n{key}\nb"), redact(f"a\n{key}\nb", "secrets", Counter())):
        assert "lQdG" not in text and "qZ1k" not in text and "aB3d" not in text and text.startswith("a\n") and text.endswith("\nb"), text
    number = "9f86d081884c7d659a2feaa0c55ad015"
    for line in (f'"private_key_id": "{number}"', f"access_key_id={number}", f"gpg: using RSA key {number.upper()}", "Passwort: geheim7"):
        assert number not in (text := Scrubber(Person()).text(line)).lower() and "geheim" not in text, text


MANY_TONGUES = [
    *(
        "Passwort: {}",
        "Kennwort = {}",
        "Mot de passe : {}",
        "mdp={}",
        "MOT_DE_PASSE={}",
        "motdepasse={}",
        "contraseña: {}",
        "wachtwoord: {}",
    ),
    *("senha: {}", "пароль: {}", "密码：{}", "Zugangsdaten: {}", "Das Passwort lautet {}", "le mot de passe est {}", "Kennwort ist {}"),
    *("--passwort {}", "--kennwort={}", "login me kennwort {}", "password: !!str {}", "password: &a {}", "PASSWORD_1={}", "key_id: {}"),
    *("<password>{}</password>", "client_secret: >-\n\n  {}", "password: 'x\n  {}'", "client_secret:\n  - {}", 'secret: "\\\n  {}"'),
    *("hasło: {}", "lösenord={}", "heslo: {}", "passord: {}", "salasana = {}", "şifre: {}", "clé secrète: {}", "비밀번호: {}"),
    *(
        "password => '{}',",
        "'client_secret' => '{}',",
        "rclone --sftp-pass {}",
        "wget --http-password={} x",
        "aws configure set aws_secret_access_key {}",
    ),
    *(
        "ldapsearch -w {} -D cn=x",
        "openssl enc -k {}",
        "smbclient -U me%{} //x",
        "htpasswd -b f me {}",
        "gpg --recv-keys 0xABCDEF0123456789",
    ),
]


@pytest.mark.parametrize("form", MANY_TONGUES)
def test_a_secret_goes_in_whatever_tongue_and_place_it_is_told(form: str) -> None:
    for secret in ("k7Hq2mZ9wLp4", "Zx-81.qRt_55u"):
        text = Scrubber(Person()).text(form.format(secret))
        assert secret not in text and "0123456789" not in text, text


@pytest.mark.parametrize("kind", ["ssh-rsa", "ssh-ed25519", "ecdsa-sha2-nistp256", "sk-ssh-ed25519@openssh.com"])
@pytest.mark.parametrize("comment", ["jo.doe@laptop", "jo.doe", "Jo Doe, home"])
def test_the_comment_of_a_public_key_goes(kind: str, comment: str) -> None:
    text = Scrubber(Person()).text(f"{kind} AAAAC3NzaC1lZDI1NTE5AAAAIGvbqajkkk {comment}\nnext: 1")
    assert comment not in text and text.endswith("\nnext: 1")
    assert "doe" not in Scrubber(Person()).text("uid  Jo <jo.doe@laptop>")


OF_TOOLS = """
export DB_PASS='{}' | MYSQL_PWD={} | redis://:{}@h:6379/0 | plink -pw {} host | pscp -pw {} a b | ansible_become_pass: {} | smtp_pass: {}
ansible_ssh_pass={} | password -> {} | Password:\t{} | setx TOKEN {} | os.environ.setdefault('API_TOKEN', '{}') | the pw is {} | pw: {}
PW={} | user me pw {} | imap.login('me', '{}') | sftp me:{}@h | <add key="ApiKey" value="{}" /> | keytool -storepass {} -keypass x
keytool -storepass x12 -keypass {} | net use Z: \\\\h\\s /user:me {} | net use Z: \\\\h\\s {} /user:me | Passwort für WLAN: {}
passcode: {} | WLAN-Schlüssel: {} | psk="{}" | wifi-sec.psk {} | Codewort: {} | code d'accès : {} | clé API : {}
API-Schlüssel: {} | Zugangscode: {}
Geheimwort: {} | PGPASSWORD={} psql | --db_password={} | user=me pass={} | mount -t cifs -o username=me,password={}
""".replace("\\t", "\t")
LONGER = """
az storage --account-key {} | mlflow --tracking-token {} | Authorization: Token {} | Authorization: ApiKey {} | consumer_secret {}
conda config --set token {} | poetry config pypi-token.x {} | https://x.org/a?X-Amz-Signature={} | PuTTY: Private-Lines: 1\n{}
"""


@pytest.mark.parametrize(("form", "secret"), [
    *((form.strip(), "Tr0ub4dor-Zx9") for line in OF_TOOLS.strip().splitlines() for form in line.split(" | ")),
    *((form.strip().replace("\\n", "\n"), drawn(40)) for line in LONGER.strip().splitlines() for form in line.split(" | ")),
    ("fw_{}", drawn(24)),
    *((form, "483920") for form in ("PIN: {}", "OTP: {}", "2FA code: {}")),
    *((form, " ".join(["abandon", "ability", "able"] * 4)) for form in ("mnemonic: {}", "seed phrase: {}")),
])  # fmt: skip
def test_a_secret_goes_where_a_tool_takes_it(form: str, secret: str) -> None:
    for text in (Scrubber(Person()).text(form.format(secret)), redact(form.format(secret), "secrets", Counter())):
        assert secret not in text and secret[-8:] not in text, text


@pytest.mark.parametrize(
    "text",
    [
        "forward_pass: 1.234567e-03",
        "backward_pass=12.345678ms",
        "PIN: 3 of 4",
        "pw = 3",
        "ssh user@host:22",
        "scp a:b/c me@h:d",
        "tokenizer.add('EOS_TOKEN', '<|im_end|>')",
        "missing key Qwen2ForCausalLMWithValueHead1 in state",
        "https://x.org/?key=1&sort=2",
        "net use is a command of Windows",
        "--image-key images_of_2023_validation_set",
        "login(user, token)",
        "a recovery phrase has twelve words",
        "the psk is asked for",
        "--num-key 16 --head-token 128",
    ],
)
def test_what_looks_like_a_tools_secret_stays(text: str) -> None:
    assert Scrubber(Person()).text(text) == text == redact(text, "secrets", Counter())


OF_2026 = [
    ("OPENAI sk-proj-{} there", drawn(100) + "_T3BlbkFJ" + drawn(40)),
    ("clone with github_pat_{}", drawn(22) + "_" + drawn(59)),
    ("said ghs_{} twice", "1234567_eyJ" + drawn(40) + ".eyJ" + drawn(80) + "." + drawn(60)),
    ("SLACK: xoxb-{}", "123456789012-1234567890123-" + drawn(24)),
    ("xoxe-1-{}", drawn(140)),
    ("glpat-{}", drawn(27) + ".01.1a2b3c4d5"),
    ("git clone https://me:hf_{}@huggingface.co/me/model", drawn(34)),
    ("wget https://hf_{}@huggingface.co/me/model", drawn(34)),
    ("AQ.Ab8{}", drawn(50)),
    ("KGAT_{}", drawn(32, HEX)),
    ("e2b_{}", drawn(40, HEX)),
    ("tvly-dev-{}", drawn(32)),
    ("sb_secret_{}", drawn(22) + "_" + drawn(8)),
    ("redis://:{}@cache:6379/0", "p@ss#w0rd"),
    ("postgresql+psycopg://me:{}@db/x", "tiger@lily"),
    ("Proxy-Authorization: Basic {}", b64encode(b"me:tiger-lily").decode()),
    ("mysql -u root -p{} db", "tiger-lily"),
    ("mariadb-dump -u root -p'{}' db", "tiger lily 7"),
    ("sshpass -p '{}' ssh host", "tiger lily 7"),
    ('redis-cli -h x -a "{}" ping', "tiger lily 7"),
    ('["sshpass",\n  "-p",\n  "{}",\n  "ssh"]', "tiger lily"),
    ('["/usr/bin/redis-cli", "-h", "x", "-a", "{}"]', "tiger-lily"),
    ('["mysql", "-u", "root", "-p{}", "db"]', "tiger-lily"),
    ('"argv": [\n    "train.py",\n    "--api-key",\n    "{}"\n  ]', "tiger-lily"),
    ("db.example.org:5432:mine:me:{}", "tiger-lily"),
    ("*:*:*:me:{}", "tiger-lily"),
    ("machine api.example.org password {} login me", "tiger-lily"),
    ("Ihr Kennwort: {}", "tiger-lily"),
    ("mot de passe : {}", "tiger-lily"),
]
LOOK_ALIKES_OF_2026 = [
    "base64 of a tensor: AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPw==",
    "--tokenizer meta-llama/Llama-3.1-8B-Instruct",
    '"--tokenizer",\n    "Qwen/Qwen3-0.6B"',
    "tokens/s: 12345.6, token ids: 151643 151644 151645",
    '"--max-steps",\n    "1000"',
    "main.cpp:1234:5:error:expected",
    "train.py:1234:main:INFO:done",
    '{"messages": [{"content": "what does sshpass -p "}, {"content": "docker login -p "}]}',
    '"--pad-token", "<pad>", "--max-new-tokens", "512"',
    "train.py:12:1:F401:unused",
    "host:8080:9090:x:yes",
    "http://localhost:8080/x?mail=me",
    "mysql -h db -P3306 -u root db",
    "mariadb is up, mysql-server, too",
    '["ssh", "-p", "2222", "host"]',
    '["redis-cli", "-p", "6379", "ping"]',
    "machine learning password manager",
    "commit 5d809c9f0e1d2c3b4a5968778695a4b3c2d1e0f9 fixes the token count",
    "tree e69de29bb2d1d6434b8b29ae775ad8c2e48c5391, blob 4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "the password in this sentence is nobody's",
    "das Passwort fehlt, le mot de passe manque",
    "pad_token_id: 151643",
    '--password "$DB_PASSWORD" --steps 3',
    "git@github.com:me/project.git and ssh://git@github.com:22/me/project",
]


@pytest.mark.parametrize(("form", "secret"), OF_2026, ids=[form[:30] for form, _ in OF_2026])
def test_a_secret_of_this_year_goes_whole(form: str, secret: str) -> None:
    text = form.replace("{}", secret)
    for taken in (Scrubber(Person()).text(text), redact(text, "secrets", Counter())):
        assert secret not in taken and secret[:8] not in taken and secret[-5:] not in taken, taken


@pytest.mark.parametrize("text", LOOK_ALIKES_OF_2026)
def test_a_look_alike_of_this_year_stays(text: str) -> None:
    assert Scrubber(Person()).secrets(text) == text == redact(text, "secrets", Counter())


def test_there_are_enough_of_both() -> None:
    assert len(PLANTED) >= 60 and len(INNOCENT) >= 40


@pytest.mark.parametrize("text", INNOCENT)
def test_a_look_alike_stays(text: str) -> None:
    assert Scrubber(Person()).text(text) == text
    assert redact(text, "secrets", Counter()) == text


def test_a_known_secret_goes_in_every_form_of_it() -> None:
    secret = "to/be+or=not to be?"
    scrubber = Scrubber(Person(secrets=frozenset({secret})))
    for before in ("", "a", "ab", "me:"):
        coded = b64encode(f"{before}{secret}".encode()).decode()
        assert coded[6:-4] not in scrubber.text(f"said {coded}!")
    assert quote(secret, safe="") not in scrubber.text(f"said {quote(secret, safe='')}!")


@pytest.mark.parametrize("text", ["fe80::1c2d:3e4f:5a6b:7c8d%eth0", "fd12:3456:789a::1", "gpu-03.cluster.internal", "gpubox9.lab.example"])
def test_an_inner_name_or_address_goes(text: str) -> None:
    assert text not in Scrubber(Person(hosts=frozenset({"gpubox7.lab.example"}))).text(f"met {text} there")


OF_HANDS = [
    ("- name: DB_PASSWORD\n  value: {}", "correct-horse7"),
    ('- name: DB_PASSWORD\n  value: "{}"', "correct-horse7"),
    ("env:\n  - {name: WANDB_API_KEY, value: {}}", drawn(40, HEX)),
    ('{"name": "DB_PASSWORD", "value": "{}"}', "correct-horse7"),
    ('secrets:\n  db_password: "{}"\n', "correct-horse7"),
    ("-----BEGIN RSA PRIVATE KEY-----\\n{}\\n-----END RSA PRIVATE KEY-----\\n", drawn(64)),
    ("> -----BEGIN PRIVATE KEY-----\n> {}\n> Zm9v\n> -----END PRIVATE KEY-----", drawn(64)),
    ("---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n{}\n---- END SSH2 ENCRYPTED PRIVATE KEY ----", drawn(64)),
    ("jdbc:oracle:thin:me/{}@h:1521/x", "correct-horse7"),
    ("Passwort für den Server: {}", "correct-horse7"),
    ("Mot de passe : « {} »", "correct-horse7"),
    ("votre mot de passe est : {}", "correct-horse7"),
    ("Le mdp du serveur est {}", "correct-horse7"),
    ("python train.py --wandb_key {} --x 1", drawn(40, HEX)),
    ("SSHPASS={} sshpass -e ssh x", "correct-horse7"),
    ("machine x login y account z password {}", "correct-horse7"),
    ('docker login --password "{}"', "correct horse"),
]
LOOK_ALIKES_OF_HANDS = [
    '{"messages": [{"content": "what is --password "}, {"content": "docker login --password "}]}',
    'docker login --password "',
    "- name: NCCL_DEBUG\n  value: INFO",
    "- name: max_tokens\n  value: 4096",
    "- name: PAD_TOKEN\n  value: <pad>",
    '{"name": "token_accuracy", "value": 0.93}',
    "total tokens = 123456789, tokens: 4096, prompt_tokens=1234567",
    "nvidia-smi: GPU-5f3b2c1d-1a2b-3c4d-5e6f-7a8b9c0d1e2f",
    "password reset row",
    "Passwort für alle Zeilen: nein",
    "le mot de passe est obligatoire",
    "--metric_key eval_loss_of_the_2024_validation",
    "---- BEGIN SSH2 PUBLIC KEY ----",
    "-----BEGIN CERTIFICATE-----",
]


@pytest.mark.parametrize(("form", "secret"), OF_HANDS, ids=[form[:30] for form, _ in OF_HANDS])
def test_a_secret_goes_where_people_and_clusters_write_it(form: str, secret: str) -> None:
    text = form.replace("{}", secret)
    for taken in (Scrubber(Person()).text(text), redact(text, "secrets", Counter())):
        assert secret not in taken and secret[-8:] not in taken and "Zm9v" not in taken, taken


@pytest.mark.parametrize("text", LOOK_ALIKES_OF_HANDS)
def test_a_look_alike_of_what_people_write_stays(text: str) -> None:
    assert Scrubber(Person()).secrets(text) == text == redact(text, "secrets", Counter())
