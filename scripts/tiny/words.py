"""The raw words of tiny's pretraining text: lists only. Composing sentences from them is corpus.py's job."""

from __future__ import annotations


def words(text: str) -> list[str]:
    return text.split()


PLAIN = words("""
able about above add after again all allow also always and another answer any apply around ask at attach available back bad base before
begin behind below best better between big block both box bring build busy call can care carry case cause change check choose clean clear
close cold collect come complete confirm connect contain copy correct count create cut daily data day deep default delete deny different
directory disable disk display does done down drop dry dump each early easy edge edit either empty enable end enough enter entire error
even every exact example exit extend extra fail false fast few field file fill filter find finish first fix flush follow force free fresh
from full gather get give go good grant group grow half hand happen hard has have head health heavy help here hide high hold hour how idea
immediate in inside install into is it its join just keep kill kind know large last late layer lead learn leave left less let level life
light like limit line list listen live load local lock log long look lose lost low main make many mark match maximum mean member memory
middle minimum minute missing mode more most mount mouse move much must name near need never new next nice night no noisy none note now
number of off often old on once one only open or order other our out over own owner owns page pair part pass past path pause people
permanent persistent pick piece place plain plan play please point port possible prepare present press print private problem process
program project protect public pull push put question quick quiet quit raise random rate read ready real really reason reboot record
recursive reduce release reload remote remove rename repair repeat replace reply report request reset rest restart restore result return
review right root round rule run safe same save say scan second see send separate serve set several share short should show shrink shut
side sign silent simple single size slow small smooth so some soon source space speed split stable stand start state status stay step
still stop store strong such switch system table tail take target task tell temporary test text than that the their them then there these
they thing think this those three through throw time timeout to today together tool top total touch trace track traffic true trust try
turn two type under undo unit until up update upper use used useful user usual value verify version very view wait want warm watch way we
weak week well what when where which while who whole why wide will with within without word work workload would write wrong year yes you
your zero
""")

COMPUTING = words("""
access account accelerator adapter address agent alias allocation append archive argument array attribute attention audit backend backup
balance bandwidth batch binary bind bit boolean boot bootloader branch bridge broadcast bucket buffer bug build bus byte cache capability
capacity card certificate chain character checkpoint checksum chunk client clock cluster column command commit compiler compression config
configuration connection console container context controller cookie core cpu crash credential cron cursor daemon database dataset
deadline debug decimal default dependency deployment descriptor desktop device digest directory disk distribution domain driver dtype
enforcing entry environment epoch event exporter expire export fan feature field filesystem firewall firmware flag folder font footprint
forward fragment frame framework frequency function gateway gigabyte governor gradient graph group guest handle handler handshake hardware
hash header heap hex history home hook host hostname hypervisor identity idle image import inactive index inference info initial inode
input instance integer interface internet interrupt interval inventory isolation item iteration job journal json kernel key keyboard
keyspace label language laptop latency launch leader learning level library license limit link listener load locale lock logger logging
login loop loss machine manager manifest mapping mask master matrix member memory merge message metadata metric migration mirror mode
model module monitor mount name namespace network neuron node number object offset operand operator optimizer option origin outage output
overlay owner package packet page parameter parent parser partition password patch path pattern peer percent performance permission
permissive physical pid pipe pipeline platform plugin podcast pointer policy pool port power precision prefix primary priority privilege
process processor profile prompt property protocol provider proxy python quantization query queue quota rack radius range rank ratio
record recovery region register registry release relay remote replica repository request reservation resource response retention retry
revision rollback root rotation route router row rule runtime sample scheduler schema scope script scrub secret section sector security
seed segment sensor sequence serial server service session setting share shard shell signal signature size slice slot snapshot socket
software source space stack standby startup state static storage stream string stripe subnet subvolume super suffix sum swap switch symbol
syntax syscall table tag target temperature template tenant tensor terminal text thread threshold throughput ticket timer timestamp token
topic trace training transaction transfer transport tree trigger tuple tunnel unit update upgrade uplink upload uptime usage user
utilization value variable vector vendor version video virtual vocabulary volume warning watchdog weight wheel width window worker
workspace write zone layer rebase deploy usr overlay staged booted pinned toolbox rootless detach quadlet manifest digest prune mirror
scratch lazy eager gpu vram
""")

TOOLS = words("""
adduser aide apt ausearch auditctl awk bash blkid bootc bpftrace btrfs buildah cat cgcreate cgexec chage chattr chcon chgrp chmod chown
chpasswd chronyc cp crictl crontab cryptsetup curl cut date dd df dig dmesg dmidecode dnf docker dpkg dracut du e2fsck ethtool export
exportfs fail2ban fallocate fdisk file find findmnt firewall-cmd flatpak free fsck fstrim getenforce getent getfacl getsebool gguf git
gpasswd grep groupadd groupmod grub2-mkconfig gzip head hipcc hostnamectl id ionice iostat ip iptables journalctl kill killall ldconfig
less lfs ln locate logger login loginctl ls lsblk lscpu lsmod lsof lspci lsusb lvcreate lvextend lvremove make mariadb mdadm mkdir mkfs
mkswap modinfo modprobe mount mpstat mtr mv mysql mysqldump nc ncat netstat nft nice nmap nmcli nohup nsenter nslookup numactl nvcc
nvidia-smi openssl ostree parted passwd perf pg_dump pg_restore pgrep pidstat ping pip pkill podman postgres printenv ps psql pvcreate
python quota quotacheck rclone redis-cli redis-server renice resolvectl restorecon rm rmdir rocm-smi rocminfo rpm rpm-ostree rsync runcon
sar scp scrontab sealert sed semanage semodule sestatus setenforce setfacl setsebool sftp sh shred skopeo smartctl sort sqlite3 ss ssh
ssh-add ssh-copy-id ssh-keygen sshd stat strace su sudo swapoff swapon sync sysctl systemctl systemd-analyze systemd-cgls systemd-cgtop
systemd-nspawn systemd-run systemd-tmpfiles tail tar taskset tcpdump tee test timedatectl timeout top torchrun touch tracepath traceroute
tree truncate tune2fs udevadm ufw ulimit umount uname uniq unlink unshare updatedb uptime useradd userdel usermod vgcreate vgextend vi
virsh virt-install virt-clone visudo vmstat w watch wc wget wg which who wipefs xargs xfs_growfs xfs_quota xfs_repair xz yum zfs zpool
zypper amd-smi accelerate deepspeed jupyter llama-bench llama-cli llama-quantize llama-server vllm ollama ramalama transformers
tensorboard huggingface torch cuda rocm hip peft lora qlora vulkan onnx numpy jax ray node_exporter prometheus grafana alertmanager
promtool qemu-img qemu virtiofs libvirt selinux apparmor systemd NetworkManager firewalld crun runc overlayfs tmpfs xfs ext4 nfs
""")

SERVICES = words("""
nginx httpd caddy sshd chronyd crond redis valkey postgresql mariadb mysqld mongod rabbitmq grafana prometheus loki haproxy squid named
unbound dnsmasq postfix dovecot samba smb nfs-server cups docker podman libvirtd firewalld auditd rsyslog telegraf collectd influxdb minio
etcd consul vault nomad jenkins gitea forgejo drone keycloak traefik envoy varnish memcached bluetooth tuned cockpit zabbix ollama vllm
jupyter mlflow
""")

USERS = words("""
alice bob carol dave erin frank grace heidi ivan judy karl lena mara nina oscar peggy quinn rosa sam tina ursula victor wendy xena yara
zoe anna ben clara dan emma felix greta hugo ines jonas kira leo mila noah olga paul rita simon tara uwe vera willi deploy backup builder
runner trainer ops webadmin analyst student tester auditor operator
""")

SEGMENTS = words("""
srv var opt data home etc mnt usr tmp run lib log backup backups cache models datasets projects www html media archive spool exports
shared images volumes scratch work logs configs conf secrets keys certs builds releases repos mirror uploads downloads photos videos music
docs mail queue state metrics reports dumps snapshots nightly weekly staging production archive2 site shop blog wiki intranet portal app
api web db sql
""")

PARTS = words("""
alder amber apple aspen atlas badger basil beech birch blue bravo cedar cobalt comet copper coral crane delta eagle echo elm ember falcon
fern fjord flint forest garnet ginger glade granite green harbor hazel heron indigo iris iron ivory jade jasper juniper kestrel lake larch
laurel lemon lilac linden lotus lunar lynx maple marble meadow mint moss north oak ocean olive onyx opal orchid otter owl panda pearl
pebble pine plum polar poplar quartz raven red reef river robin rose ruby saffron sage salmon silver slate solar spruce star stone summit
sun swan tango thorn tiger topaz tulip violet walnut west willow winter wolf yellow zebra
""")

SYLLABLES = words("""
ab ad al an ar ba be bi bo bra ca ce co cra da de di do dra el en er fa fe fi flo ga ge go gra ha he hi ho in is ja jo ka ke ki ko kra la
le li lo lu ma me mi mo mu na ne ni no nu ol or pa pe pi po pra qua ra re ri ro ru sa se shi so sta su ta te ti to tra tu ul un va ve vi
vo wa we xi ya yo za ze zi zo
""")

DEVICES = words("""
/dev/sda /dev/sdb /dev/sdc /dev/sdd /dev/sda1 /dev/sdb1 /dev/sdb2 /dev/sdc1 /dev/sdd1 /dev/vda /dev/vdb /dev/vdb1 /dev/nvme0n1
/dev/nvme1n1 /dev/nvme0n1p1 /dev/nvme0n1p2 /dev/nvme1n1p1 /dev/md0 /dev/md1 /dev/loop0 /dev/kfd /dev/dri/renderD128 /dev/mapper/luks
""")

INTERFACES = words("""
eth0 eth1 eth2 ens3 ens18 ens192 enp1s0 enp2s0 enp3s0 enp5s0f1 wlan0 wlp2s0 br0 br1 virbr0 bond0 bond1 wg0 tun0 team0 lo ib0
""")

TYPES = words("""
tcp udp dmz public internal external trusted drop block work home ipv4 ipv6 nat masquerade forward dhcp dns mtu vlan tls ssl http https
ssh cmd ctl sys dev proc tmpfs noexec nosuid nodev noatime relatime ro rw defaults remount uuid rsa ed25519 ecdsa aes sha256 md5 sudoers
wheel shadow utf8 lru lfu httpd_sys_content_t httpd_sys_rw_content_t samba_share_t container_file_t ssh_port_t http_port_t
public_content_t user_home_t var_log_t etc_t mysqld_db_t postgresql_db_t nfs_t tmp_t bin_t usr_t redis_port_t httpd_can_network_connect
container_use_devices samba_enable_home_dirs vm.swappiness net.ipv4.ip_forward net.core.somaxconn kernel.panic fs.file-max
vm.overcommit_memory net.core.rmem_max vm.max_map_count CPUQuota MemoryMax MemoryHigh TasksMax IOWeight CPUWeight AllowedCPUs OnCalendar
ExecStart Restart WantedBy PermitRootLogin MaxAuthTries CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
HSA_OVERRIDE_GFX_VERSION PYTORCH_ALLOC_CONF NCCL_DEBUG OMP_NUM_THREADS HF_HOME maxmemory maxmemory-policy allkeys-lru appendonly SELECT
FROM WHERE GRANT ALTER CREATE DROP DATABASE TABLE USER ROLE CONFIG SET GET EXPIRE VACUUM ANALYZE INDEX --permanent --zone --add-service
--add-port --remove-port --set-property --now --user --name --publish --volume --memory --cpus --property --since --unit --follow
--vacuum-size --vacuum-time --ctx-size --n-gpu-layers --threads --host --model --batch-size --learning-rate --nproc-per-node --nnodes
--master-port --tensor-parallel-size --gpu-memory-utilization --max-model-len --dtype --quantization --recursive --create --delete --force
--list --show --set --get --all --format --output --input --type --size --level --limit --time --file --add --remove bfloat16 float16
float32 int8 fp8 Q4_K_M Q5_K_M Q6_K Q8_0 F16 IQ4_XS GGUF gfx1100 gfx1030 gfx90a gfx942 gfx1201
""")

PROPER = words("""
GiB MiB KiB GB MB Redis NVIDIA AMD Intel SELinux OSTree vLLM PostgreSQL MySQL SQLite CUDA ROCm HIP TensorBoard PyTorch Linux Fedora Debian
Ubuntu Python Docker Podman Kubernetes Slurm Ollama Modelfile Containerfile Dockerfile Makefile LoRA QLoRA PEFT AdamW Adam CPU GPU GPUs
RAM PID UID GID VM DNS TCP UDP IP NFS RAID LVM LUKS GPT UEFI BIOS SSD NVMe SSH TLS SSL RSA ACL SQL CSV JSON YAML TOML HTTP HTTPS URL API
VLAN MTU SOCKS CDI OCI RPM AVC SIGHUP SIGTERM SIGINT SIGUSR SIGKILL KEY VALUE PATH NAME HOST PORT SIZE FILE ALL TO ON IN AS IF NOT NULL
SCHEMA COLUMN OWNER COUNT ADD COPY RUN ENV LAUNCH SYSTEM DEVICE DEVICES VERSION LEVEL TIME MODE TYPE LIMIT POOL LOG Please Which How What
Can Show Write Give Task Let Help Somebody True False None Auto Model Config Loader Data For Causal Cosine Annealing Users After
Environment From lines words tokens layers bytes percent seconds minutes hours days keys rights weights rows processes modules groups
users files folders commands ports packages images cards threads epochs steps settings shuffle split diff history accept testing local
remote localhost org com net lan example registry quay ghcr hub github recipient client total raw parameters fetch modify download upload
genrsa somebody tonight ticket asked says permanently running through while over until without only also within above below between onto
""")

# What deserves tokens of its own even where documents use it rarely.
VOCABULARY = [*PLAIN, *PROPER, *PARTS, *COMPUTING, *TOOLS, *SERVICES, *USERS, *SEGMENTS, *TYPES]
