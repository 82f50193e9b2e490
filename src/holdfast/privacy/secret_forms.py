"""What secrets look like, by the form their makers gave them or by where they stand: one list for bundles, redaction and data checks."""

from __future__ import annotations

import re

_OF_A_KEY = r"(?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?[ -]----"
_BEGINS, _ENDS = rf"----[- ]BEGIN {_OF_A_KEY}", rf"----[- ]END {_OF_A_KEY}"
_LINE_END = r"(?:[\s>|#]|\\{1,4}[nr]){0,40}"  # also of a quoted text, and of one in JSON
PRIVATE_KEY = re.compile(rf"{_BEGINS}.*?(?:{_ENDS}|\Z)", re.S)  # whatever stands between

# Keys and tokens by the forms their makers gave them.
KEY_FORMS = re.compile(
    rf"{_BEGINS}(?:[\s>|#]{{0,40}}[\w-]+: [^\n]*\n)*(?:{_LINE_END}[A-Za-z0-9+/=]{{40,}})*"
    rf"(?:{_LINE_END}[A-Za-z0-9+/=]*(?:\s+=[A-Za-z0-9+/]{{4}})?{_LINE_END}{_ENDS})?"
    r"|\b(?:(?:AKIA|ASIA)[A-Z0-9]{16}\b|AGE-SECRET-KEY-1[A-Za-z0-9]{40,}|SG\.[\w-]{22}\.[\w-]{43}\b"
    r"|[rs]k_live_[A-Za-z0-9]{24,}\b|npm_[A-Za-z0-9]{36}\b|pypi-AgE[\w-]{50,}"
    r"|gh[pousr]_(?:[A-Za-z0-9]{36}\b|[\w-]{10,600}(?:\.[\w-]{10,600}){2})|github_pat_\w{60,}|glpat-[\w-]{20,300}(?:\.\w{2}\.\w{7,9}\b)?"
    r"|sk-(?:proj-|ant-)?[A-Za-z0-9_-]{32,}|hf_[A-Za-z]{34}\b|xox[a-z]-[A-Za-z0-9%-]{20,}|AIza[\w-]{35}\b|AQ\.Ab[\w-]{30,}"
    r"|r8_[A-Za-z0-9]{30,}|lsv2_(?:pt|sk)_\w{30,}|gsk_[A-Za-z0-9]{40,}|nvapi-[\w-]{40,}|dapi[0-9a-f]{32}(?:-\d)?\b"
    r"|SK[0-9a-f]{32}\b|(?:xai|pplx|csk)-[A-Za-z0-9]{40,}|(?:tgp|dop)_v1_[\w-]{40,}|ATATT3[\w=-]{50,}|shpat_[0-9a-f]{32}\b"
    r"|glsa_\w{32,}|ya29\.[\w-]{20,}|dckr_pat_[\w-]{20,}|hvs\.[\w-]{20,}|whsec_[A-Za-z0-9+/=]{20,}|GOCSPX-[\w-]{20,}"
    r"|pcsk_\w{30,}|jina_\w{40,}|rpa_[A-Z0-9]{30,}|\d{8,10}:AA[\w-]{32,33}(?![\w-])"
    r"|xapp-\d-[A-Za-z0-9-]{20,}|key-[0-9a-f]{32}\b|hf_(?:oauth|jwt)_[\w.-]{20,}|tskey-[a-z]{2,12}-[\w-]{16,}"
    r"|lin_(?:api|oauth)_\w{30,}|ntn_[A-Za-z0-9]{30,}|fig[dou]_[\w-]{30,}|PMAK-[A-Za-z0-9-]{40,}|rubygems_[0-9a-f]{40,}"
    r"|dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{30,}|sntry[su]_[\w+/=-]{30,}|NRAK-[A-Z0-9]{20,}|gl(?:rt|ptt|oas|dt|ft|cbt)-[\w-]{20,}"
    r"|hv[br]\.[\w-]{20,}|sbp_[0-9a-f]{30,}|ABSK[A-Za-z0-9+/=]{60,}|[rs]k_test_[A-Za-z0-9]{20,}|sq0[a-z]{3}-[\w-]{20,}"
    r"|KGAT_[0-9a-f]{32}\b|e2b_[0-9a-f]{40}\b|tvly-(?:dev-|prod-)?[A-Za-z0-9]{20,}|sb_secret_[\w-]{20,}|napi_[a-z0-9]{40,}"
    r"|shp(?:ss|ca|pa)_[0-9a-f]{32}\b|glc_[A-Za-z0-9+/=]{30,}|fw_(?=[A-Za-z]{0,30}\d)[A-Za-z0-9]{22,28}\b|dt0c01\.[A-Z0-9.]{60,})"
    r"|(?<![\w-])eyJ[\w-]{15,}\.eyJ[\w-]{15,}\.[\w-]{20,}"
)
# What a password is called; mdp is the French short form.
PASSWORD_WORDS = (
    r"password|passwd|passphrase|passcode|passwort|kennwort|kennsatz|zugangsdaten|geheimnis|mots?[ _-]?de[ _-]?passe"
    r"|(?<![A-Za-z])mdp|contrase(?:ñ|n)a|wachtwoord|senha|parola|пароль|密码|密碼|パスワード"
    r"|codewort|geheimwort|zugangscode|(?:wlan|wifi|api|zugangs|geheim)-?schl(?:ü|ue)ssel|code[ _-]?d['’]acc(?:è|e)s|cl(?:é|e)[ _-]?api"
    r"|hasło|heslo|lösenord|adgangskode|passord|salasana|jelszó|şifre|비밀번호|cl(?:é|e)s?[ _-]?secr(?:è|e)te"
)
_NAMED = rf"(?:{PASSWORD_WORDS}|secret|token|credentials?|(?:api|access|private|secret)[_-]?key)(?:[_-]?id)?"
_MIXED = r"(?=[A-Za-z0-9/+_-]{0,199}[A-Z])(?=[A-Za-z0-9/+_-]{0,199}[a-z])(?=[A-Za-z0-9/+_-]{0,199}\d)"
# The group `it` is the secret, what stands around it tells that it is one.
BLOCK_FORMS = (  # to be looked for before the value behind a name is: that is a mere | or > here
    re.compile(
        rf"(?im)^(?P<in>[ \t]*)(?:- )?[\"']?[\w.-]{{0,40}}{_NAMED}[\"']?[ \t]*:[ \t]*(?:[!&][\w!.-]{{0,40}}[ \t]+)?"
        r"[|>][+\d-]{0,2}[ \t]*(?:#[^\n]*)?\n(?:[ \t]*\n){0,5}"
        r"(?P<it>(?P=in)[ \t]+\S[^\n]*(?:\n(?:[ \t]*|(?P=in)[ \t]+\S[^\n]*)(?=\n|\Z)){0,200})"
    ),
    re.compile(  # in quotes, over several lines
        rf"(?im)^[ \t]*(?:- )?[\"']?[\w.-]{{0,40}}{_NAMED}[\"']?[ \t]*:"
        r"[ \t]*(?P<quote>[\"'])(?P<it>[^\"'\n]{0,200}\n[^\"']{1,2000})(?P=quote)"
    ),
)
_IS, _FOR = "(?:is|was|lautet|ist|war|est|es)", "(?:for|für|fuer|pour|of|du|de|des|zum|zur|vom)"
_OPENS = "[«„“‹\"']?[ \\xa0]?"  # a quotation
_COMMA = r"\s{0,40},\s{0,40}"
_NEXT = rf"{_COMMA}(?:[\"'][^\"'\n]{{0,200}}[\"']{_COMMA}){{0,12}}?"  # the arguments between
_NO_PORT = r"(?![\d.:/-]+(?:/(?:tcp|udp))?(?:\s|$))(?![/.~-])"  # what else stands behind -p: a port, a folder
PLACED_FORMS = (
    re.compile(
        r"(?i)(?:\bsshpass\s{1,4}-p\s{0,4}"
        r"|--(?:password|passwd|pass|passphrase|token|auth-?key|authtoken|oauth2-bearer|api-key|secret)[= ]\s{0,4}"
        r"|--[\w-]{1,40}-(?:password|passwd|pass|passphrase|secret)[= ]\s{0,4}"
        r"|\bconfigure\s{1,4}set\s{1,4}\S{0,80}(?:secret|token)\S{0,80}\s{1,4}"
        r"|-pass(?:in|out)?\s{1,4}pass:|\b(?:add-)?authtoken[: ]\s{0,4}|\bbindpw\s{1,4}|\bsudo\b[^\n|;]{0,80}?<<<\s{0,4}"
        r"|\b(?:docker|podman|nerdctl|buildah|registry)\s{1,4}login\b[^\n|;]{0,400}?\s-p\s{0,4}"
        r"|\b(?:zip|unzip|sqlcmd|ipmitool)\b[^\n|;]{0,200}?\s(?-i:-P)\s{0,4}|\b7za?\b[^\n|;]{0,200}?\s(?-i:-p)(?=\S)"
        r"|\bcurl\b[^\n|;]{0,400}?\s(?:-u|--user)\s{0,4}[^\s:]{1,80}:|\b(?:mysql|mariadb)[a-z-]{0,12}\b[^\n|;]{0,400}?\s(?-i:-p)(?=\S)"
        r"|\bldap(?:search|add|modify|delete|whoami)\b[^\n|;]{0,200}?\s(?-i:-w)\s{1,4}|\bopenssl\b[^\n|;]{0,200}?\s(?-i:-k)\s{1,4}"
        r"|\bsmbclient\b[^\n|;]{0,200}?\s(?-i:-U)\s{0,4}[^\s%]{1,80}%|\bhtpasswd\b[^\n|;]{0,80}?\s-[A-Za-z]{0,4}b[A-Za-z]{0,4}\s{1,4}\S{1,200}\s{1,4}\S{1,80}\s{1,4}"
        r"|\bredis-cli\b[^\n|;]{0,400}?\s-a\s{1,4})(?P<quote>[\"'])?"
        r"(?P<it>(?(quote)(?![\s$<{}\],:])[^\"'\n]{3,200}(?=[\"'])|(?!))|[^\s\"'$<>{}|;]{3,})"
    ),
    re.compile(  # in a list of arguments, as JSON has it
        rf"(?i)[\"']--(?:[\w.-]{{0,40}}(?:{PASSWORD_WORDS}|secret|credentials?|(?:api|access|private|auth)[_-]?key"
        rf"|(?:auth|access|hub|hf|api|bearer|refresh|session)[_-]?token)|token)[\"']{_COMMA}"
        r"(?P<quote>[\"'])(?P<it>(?:(?!(?P=quote))[^\\\n]|\\.){1,400})(?P=quote)"
    ),
    re.compile(
        rf"[\"'](?:[^\"'\s]{{0,80}}/)?(?:sshpass[\"']{_NEXT}[\"']-p[\"']{_COMMA}[\"']|redis-cli[\"']{_NEXT}[\"']-a[\"']{_COMMA}[\"']"
        rf"|(?:mysql|mariadb)[a-z-]{{0,12}}[\"']{_NEXT}[\"']-p)(?P<it>[^\"'\n]{{3,200}})"
    ),
    re.compile(  # of ~/.pgpass: host, port, database, user
        r"(?m)^[\w.*-]{1,80}:(?:\d{4,5}|\*):(?!\d{1,9}:)[^:\s]{1,80}:(?!(?:\d{1,9}|DEBUG|INFO|WARNING|ERROR|CRITICAL):)[^:\s]{1,80}:"
        r"(?P<it>[^\s:]{3,200})$"
    ),
    re.compile(  # of ~/.netrc, with the password before the name
        r"(?i)\bmachine\s{1,8}[\w-]{1,60}\.[\w.-]{1,60}\s{1,8}password\s{1,8}(?P<it>\S{3,})"
    ),
    re.compile(  # -p beside a user's name, or of a program whose -p it is
        r"(?i)(?:\s(?:-u|--user(?:-?name)?|--login)[= ]\s{0,4}\S{1,80}(?!\S)|\b(?:twine|az|svn|helm|skopeo|oc|mongo\w{0,8}|jf)\s{1,4}\w)"
        rf"[^\n|;]{{0,200}}?\s(?-i:-p)[= ]\s{{0,4}}{_NO_PORT}[\"']?(?P<it>[^\s\"'$<>{{}}|;]{{3,}})"
    ),
    re.compile(
        rf"(?i)\s(?-i:-p)[= ]\s{{0,4}}{_NO_PORT}[\"']?(?P<it>[^\s\"'$<>{{}}|;]{{3,}})[\"']?"
        r"(?=[^\n|;]{0,200}?\s(?:-u|--user(?:-?name)?)[= ])"
    ),
    re.compile(r"(?i)\b(?:gpg|pgp)\b[^\n]{0,80}?\bkey(?:[ -]?id)?[:= ]\s{0,4}(?:0x)?(?P<it>[0-9A-F]{8,40})\b"),
    re.compile(r"(?i)\b(?:gpg|pgp)2?\b[^\n]{0,80}?\s--[a-z-]{0,20}(?:keys?|user)[= ]\s{0,4}(?:0x)?(?P<it>[0-9A-F]{8,40})\b"),
    re.compile(rf"(?i)<(?P<name>[\w.:-]{{0,40}}(?:{PASSWORD_WORDS}|secret))>(?P<it>[^<\n]{{3,200}})</(?P=name)>"),
    re.compile(  # fed to a program that reads it
        r"(?i)\becho\s{1,4}(?:-n\s{1,4})?[\"']?(?P<it>[^\s\"'|)]{4,})[\"']?\s{0,4}\|"
        r"[^\n|]{0,200}?(?:-stdin\b|\bsudo\b[^\n|]{0,20}-S|--with-token|\blogin\b)"
    ),
    re.compile(r"(?i)--pass(?:word|phrase)-file[= ]\s{0,4}<\(\s{0,4}(?:echo|printf)\s{1,4}[\"']?(?P<it>[^\s\"')]{3,})"),
    re.compile(r"(?i)\bX-[\w-]{1,40}-(?:Token|Key|Secret)\\{0,7}[\"']?\s{0,4}:\s{0,4}\\{0,7}[\"']?(?P<it>[^\s\"',;\\]{8,})"),
    re.compile(
        r"\b[A-Z][A-Z0-9_]{0,60}_(?:KEY|TOKEN|SECRET)[ \t]{1,4}"
        r"(?P<it>(?=[\w.-]{0,200}\d)(?=[\w.-]{0,200}[A-Za-z])[\w.-]{16,200})(?![\w.-])"
    ),
    re.compile(
        r"(?i)(?<![\w.$-])(?:[\w.-]{0,40}[_.-]|ssh)?(?:pass|pwd?|psk)[ \t]{0,4}[=:][ \t]{0,4}[\"']?"
        r"(?![\d.,]+(?:e[+-]?\d+)?[a-z%]{0,2}(?!\S))"
        r"(?P<it>(?=[^\s/]{0,80}\d)(?=[^\s/]{0,80}[A-Za-z])[^\s/\"',;\\]{8,80})(?![\w/])"
    ),
    re.compile(
        rf"(?i)\b(?:{PASSWORD_WORDS}|pw)[ \t]+(?:{_IS}|{_FOR}[ \t]+\S{{1,80}}(?<!:)"
        rf"|{_FOR}(?:[ \t]+[^\s:=]{{1,40}}){{1,3}}(?:[ \t]+{_IS}|(?=[ \t]?:)))[: \t][ \t:]{{0,4}}{_OPENS}"
        r"(?P<it>(?=[^\s]{0,80}\d)(?=[^\s]{0,80}[A-Za-z])[^\s\"',;\\»“”]{6,80})"
    ),
    re.compile(rf"(?i)(?:{PASSWORD_WORDS})[ \t]{{0,4}}[:=][ \t]{{0,4}}(?=[«„“‹]){_OPENS}(?P<it>[^\s»“”›]{{4,80}})"),
    re.compile(  # of a list of variables, as of a container: its name, then its value
        rf"(?i)\bname\\{{0,7}}[\"']?\s{{0,4}}:\s{{0,4}}\\{{0,7}}[\"']?[\w.-]{{0,40}}"
        rf"(?:{PASSWORD_WORDS}|secret|(?:api|access|private|secret)[_-]?key|(?-i:[A-Z0-9]_(?:TOKEN|KEY|PASS|PWD)))\\{{0,7}}[\"']?"
        r"[\s,]{1,60}\\{0,7}[\"']?value\\{0,7}[\"']?\s{0,4}:[ \t]{0,4}\\{0,7}[\"']?(?P<it>(?![<$])[^\s\"',}\\]{4,400})"
    ),
    re.compile(r"(?i)\bjdbc:oracle:\w{2,8}:[^\s/@:]{1,80}/(?P<it>[^\s@]{3,80})@"),
    re.compile(r"(?i)\bpass(?:word|phrase)[ \t]{1,4}(?P<quote>\\{0,7}[\"'])(?P<it>[^\s\"'\\]{4,80})(?P=quote)"),
    re.compile(  # of Kaggle, also within a text in JSON
        r"(?i)\"username\\{0,7}\"\s{0,4}:\s{0,4}\\{0,7}\"[^\"\\]{1,80}\\{0,7}\"\s{0,4},\s{0,4}"
        r"\\{0,7}\"key\\{0,7}\"\s{0,4}:\s{0,4}\\{0,7}\"(?P<it>[0-9a-f]{32})\b"
    ),
    re.compile(r"(?i)\b(?:plink|pscp|psftp|putty)\b[^\n|;]{0,200}?\s-pw\s{1,4}[\"']?(?P<it>[^\s\"']{3,})"),
    re.compile(r"(?i)\s-(?:src|dest|new)?(?:store|key)pass[ \t]{1,4}[\"']?(?P<it>[^\s\"'-][^\s\"']{2,})"),
    re.compile(r"(?i)\bnet\s{1,4}use\b[^\n]{0,200}?\s/user:\S{1,80}\s{1,4}(?P<it>(?!/)\S{3,})"),
    re.compile(r"(?i)\bnet\s{1,4}use\b[^\n]{0,200}?\s(?P<it>(?![/*\\])\S{3,})\s{1,4}/user:"),
    re.compile(r"(?i)\b(?:sftp|ftp|lftp|scp|ssh)\s{1,4}[^\s:@/]{1,80}:(?P<it>[^\s@/]{3,})@"),
    re.compile(r"(?i)\.login\(\s{0,4}[\"'][^\"'\n]{1,80}[\"']\s{0,4},\s{0,4}[\"'](?P<it>[^\"'\n]{4,80})[\"']"),
    re.compile(r"(?i)\bkey=[\"'][^\"'\n]{0,60}(?:key|token|secret|password)[\"']\s{1,4}value=[\"'](?P<it>[^\"'\n]{6,200})"),
    re.compile(r"(?i)\bsetx\s{1,4}\w{0,40}(?:token|key|secret|passw\w{0,4})\s{1,4}[\"']?(?P<it>[^\s\"']{6,})"),
    re.compile(  # a default of a variable of the environment
        r"[\"'][A-Z0-9_]{0,40}(?:_TOKEN|_KEY|_SECRET|PASSWORD|_PASS)[\"']\s{0,4},\s{0,4}"
        r"[\"'](?P<it>(?=[^\"'\n]{0,200}\d)(?=[^\"'\n]{0,200}[A-Za-z])[^\"'\n<>/ ]{8,200})[\"']"
    ),
    re.compile(r"(?i)\bauthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:[\w-]{2,20}[ \t]{1,4})?(?P<it>(?=\S{0,200}\d)[^\s\"',;]{16,})"),
    re.compile(rf"\s--[\w-]{{1,40}}[-_](?:token|key)[= ]\s{{0,4}}[\"']?(?P<it>{_MIXED}[\w+/=.-]{{20,}}|[0-9a-f]{{32,}}\b)"),
    re.compile(
        r"(?i:\b(?:[\w-]{0,40}[_-])?(?:secret|token|api[_ -]?key)(?:\.[\w-]{1,40})?)[ \t]{1,4}"
        rf"(?P<it>{_MIXED}(?=(?:[A-Za-z+_-]{{0,60}}\d){{3}})(?![A-Za-z0-9+_-]{{0,40}}/)[A-Za-z0-9/+_-]{{20,200}}={{0,2}})(?![\w/.+=-])"
    ),
    re.compile(r"(?i)[?&][\w-]{0,40}(?:signature|sig|token|api[_-]?key|secret|credential|password)=(?P<it>[^\s&\"'#]{6,})"),
    re.compile(r"Private-Lines:[ \t]{0,4}\d{1,3}\s{1,4}(?P<it>[A-Za-z0-9+/=]{20,}(?:\s{1,2}[A-Za-z0-9+/=]{20,}){0,100})"),
    re.compile(r"(?i)\bpsk[ \t]{1,4}[\"']?(?P<it>(?=\S{0,80}\d)(?=\S{0,80}[A-Za-z])[^\s\"']{8,80})"),
    re.compile(r"(?i)\buser[ \t]{1,4}\S{1,80}[ \t]{1,4}(?:pw|pass)[ \t]{1,4}(?P<it>(?=\S{0,80}\d)(?=\S{0,80}[A-Za-z])\S{8,80})"),
    re.compile(r"\b(?:PIN|OTP|TAN|2FA)(?: [Cc]ode)?[ \t]{0,4}[:=][ \t]{0,4}(?P<it>\d{4,8})\b(?![.,:]?\d)"),
    re.compile(  # of a wallet
        r"(?i)\b(?:mnemonic|(?:seed|recovery)[ _-]?phrase)[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?P<it>[a-z]{3,8}(?:[ ,]{1,2}[a-z]{3,8}){11,23})\b"
    ),
    re.compile(r"(?i)\bhooks\.slack\.com/(?:services|workflows|triggers)/(?P<it>[\w/]{10,})"),
    re.compile(r"(?i)\bdiscord(?:app)?\.com/api/webhooks/(?P<it>\d+/[\w-]{20,})"),
    re.compile(r"(?i)\bwebhook\.office\.com/webhookb2/(?P<it>[^\s\"']{20,})"),
    re.compile(r"(?i)\bapi\.telegram\.org/(?:file/)?bot(?P<it>\d+:[\w-]{20,})"),
    re.compile(r"(?i)\b(?:AccountKey|SharedAccessKey|SharedAccessSignature)=(?P<it>[^\s;\"']{8,})"),
    re.compile(r"(?i)\"(?:auth|identitytoken|registrytoken)\"\s{0,8}:\s{0,8}\"(?P<it>[^\s\"]{8,})\""),
    re.compile(r"(?i)(?<![A-Za-z0-9])_(?:auth|authToken|password) {0,4}= {0,4}(?P<it>[^\s\"']{6,})"),
    re.compile(rf"(?i)\blogin[ \t]+\S{{1,80}}\s{{1,8}}(?:account\s{{1,8}}\S{{1,80}}\s{{1,8}})?(?:{PASSWORD_WORDS})[ \t]+(?P<it>\S{{3,}})"),
    re.compile(r"(?im)^[ \t]*password[ \t]+(?P<it>\S{4,})[ \t]*$"),
    re.compile(r"(?i)\b(?:set-)?cookie[\"']?\s{0,4}:\s{0,4}[\"']?(?P<it>[\w.-]{1,80}=[^\n\"']{4,})"),
    re.compile(r"(?i)\bwandb(?:\.login\(| +login\b)[^\n]{0,40}?(?P<it>\b[0-9a-f]{40}\b)"),
    re.compile(r"(?i)(?:token|key|secret|password|signature|sig)%3D(?P<it>[^\s\"'&%]{6,})"),
    re.compile(  # a secret on the line below its name
        r"(?im)^[ \t]*[\"']?(?:[\w.-]{1,40} ){0,3}[\w.-]{0,40}(?:password|passphrase|secret|token|api[_ -]?key|access[_ -]?key)[\"']?"
        r"[ \t]*[:=]?[ \t]*[|>]?-?[ \t]*\n"
        r"[ \t]*(?:- )?[\"']?(?P<it>(?=[^\s\"']{0,80}\d)(?=[^\s\"']{0,80}[a-z])[^\s\"'/:]{12,})[\"']?[ \t]*$"
    ),
    re.compile(rf"(?<![\w/+=.-]){_MIXED}(?!(?:[A-Za-z0-9+]{{0,40}}/){{3}})(?P<it>[A-Za-z0-9/+]{{40}})(?![\w/+=.-])"),  # AWS
    re.compile(  # with a short name of its maker before it
        r"(?<![\w./:-])(?P<it>[A-Za-z]{2,10}(?:[._-][A-Za-z0-9]{1,8}){0,2}[._-](?=(?:[A-Za-z]{0,60}\d){3})(?=[a-z0-9]{0,80}[A-Z])"
        r"(?=[A-Z0-9]{0,80}[a-z])[A-Za-z0-9]{30,200})(?![\w.-])"
    ),
    re.compile(
        rf"[=:][ \t]{{0,4}}[\"']?(?!_Z|(?:GPU|MIG)-[0-9a-f]{{8}}-)"
        rf"(?P<it>{_MIXED}(?![A-Za-z0-9+_-]{{0,40}}/)[A-Za-z0-9/+_-]{{32,200}}={{0,2}})(?![\w/.+=-])"
    ),
)
