"""General computing facts and small talk, in our own words. Lists only; nothing here is an answer of the shipped recipe."""

from __future__ import annotations

# (subject, what is said about it)
FACTS: tuple[tuple[str, str], ...] = tuple(
    (line.split(" | ")[0].strip(), line.split(" | ")[1].strip())
    for line in """
SELinux | labels every process and file and lets the kernel decide by policy which of them may meet
a SELinux boolean | is a switch that turns one part of the policy on or off
a security context | has a user, a role, a type and often a level
permissive mode | reports what the policy would have denied and lets it happen
a cgroup | is a group of processes whose memory, processor time and other resources are counted and limited together
a container | is a set of processes with its own view of files, network and users on a shared kernel
an image layer | is a set of file changes that is stacked on the layers below it
podman | runs containers without a daemon and can do so without root
a container registry | stores images and hands them out by name, tag or digest
ROCm | is the open software stack for computing on AMD graphics cards
HIP | is a programming interface that lets one source run on AMD and NVIDIA cards
CUDA | is the programming platform for NVIDIA cards
VRAM | is the memory on a graphics card
a kernel on a GPU | is a function that many threads run at the same time
OSTree | keeps whole operating system trees as commits, like a version store for bootable files
a deployment | is one bootable checkout of a system tree
bootc | delivers an operating system as a container image and boots from it
a rollback | goes back to the deployment that was booted before
an IP address | names an interface within a network
a subnet mask | tells which part of an address names the network
a default route | is taken when no better route matches
DNS | turns names into addresses
DHCP | hands out addresses to machines that join a network
a firewall zone | groups interfaces and sources that are trusted to the same degree
a port | is a number that tells which program a packet is meant for
systemd | starts services, keeps them running and orders them by their dependencies
a unit file | describes a service, a timer, a mount or another thing that systemd cares for
a timer unit | starts another unit at set times
the journal | collects the messages of the kernel and of all services
the kernel | shares processor, memory and devices among the processes
a kernel module | is code that can be loaded into the running kernel
a system call | is how a process asks the kernel for something
swap | is disk space that takes memory pages which are not used at the moment
a block device | is read and written in blocks of a fixed size
a partition | is a range of a disk that is used like a disk of its own
LVM | joins disks to volume groups and cuts logical volumes out of them
RAID | spreads data over several disks for safety, for speed or for both
a filesystem | arranges files and folders on a block device
XFS | is a filesystem that can grow but cannot shrink
Btrfs | is a filesystem with snapshots, subvolumes and checksums
ext4 | is a common filesystem with a journal
an inode | holds the owner, the times and the place of a file, but not its name
a hard link | is a second name for the same inode
a symbolic link | is a small file that holds the path of another one
a snapshot | keeps the state of a volume at one moment
a metric | is a number that is measured again and again
an alert | tells people that a metric has left its range for too long
an exporter | offers the metrics of a program for collection
a package | is a set of files with a name, a version and a list of what it needs
a repository | is a place from which packages are installed
a package manager | installs packages together with what they need
a user account | has a name, a number, a home folder and a shell
a group | lets several users share rights
root | is the account that may do everything
sudo | lets a user run one command with the rights of another
SSH | opens a protected shell on another machine
a private key | must never leave the machine it was made on
a public key | can be given to everybody
a virtual machine | is a whole computer that is played by software
a hypervisor | runs several virtual machines on one host
KVM | is the part of Linux that lets virtual machines use the processor directly
a database | keeps data so that many programs can search and change it safely
a transaction | takes place as a whole or not at all
an index | makes searching faster and writing a little slower
a replica | follows another database and holds the same data
Redis | keeps its data in memory and answers very fast
an eviction policy | says which keys go first when the memory is full
a tensor | is an array of numbers with a shape and a type
a neural network | is a chain of simple functions whose parameters are learned
PyTorch | is a library for tensors and for learning by gradients
a language model | guesses the next token from the ones before it
a token | is a piece of text that a model reads as one number
a tokenizer | cuts text into tokens
GGUF | is a file format that holds a model for llama.cpp
quantization | stores weights with fewer bits to save memory
the context window | is the number of tokens a model can look at
a prompt | is the text that a model continues
inference | is using a model that has been trained
training | changes the weights so that the loss becomes smaller
the loss | measures how badly the model guesses
the learning rate | says how far the weights move in one step
an epoch | is one pass over all training rows
a batch | is the set of samples used for one step
gradient accumulation | adds up the gradients of several small batches before one step
a checkpoint | is the state of a training run on disk, from which it can go on
LoRA | trains two small matrices beside each large one and leaves the large one as it is
overfitting | means that a model knows its training rows by heart and fails on new ones
a seed | makes random choices repeatable
encryption | makes data unreadable for everybody without the key
a hash | is a short fixed-size number computed from data of any length
a certificate | ties a public key to a name and is signed by somebody others trust
an audit log | says who did what and when
a password manager | keeps long random passwords so that nobody has to remember them
a backup | is a copy that is kept elsewhere and has been restored at least once
latency | is the time between asking and the first answer
throughput | is how much is done in a second
a cache | keeps answers that were expensive to get
a deadlock | is two parts each waiting for the other
a race | is a fault that depends on who comes first
an environment variable | is a name with a value that a process hands on to its children
standard output | is where a command writes its result
an exit code | is zero when a command did what it was asked to do
a pipe | hands the output of one command to the next one
a cron table | lists commands and the times they run at
a log rotation | renames old logs and removes the oldest
a load average | counts the processes that run or wait to run
a proxy | asks on behalf of others
a load balancer | spreads requests over several servers
a bridge | joins several network interfaces like a switch
a VLAN | splits one physical network into several separate ones
IPv6 | uses addresses of 128 bits
a socket | is an end of a connection between two programs
a daemon | is a program that runs in the background
a signal | is a short message to a process, for example that it should end
a zombie | is a process that has ended and whose parent has not asked for its exit code
""".strip().splitlines()
)

# (what a person says, what the assistant says)
TALK: tuple[tuple[str, str], ...] = tuple(
    (line.split(" | ")[0].strip(), line.split(" | ")[1].strip())
    for line in """
Hello! | Hello! What can I do for you?
Hi. | Hi! What are you working on?
Good morning. | Good morning! How can I help?
Good evening. | Good evening! What shall we look at?
Thanks! | You are welcome.
Thank you, that worked. | Good to hear. Tell me if anything else comes up.
That did not work. | I am sorry. What does the error message say?
Who are you? | I am tiny, a very small language model. I know little, but I can copy and fill in values.
What is your name? | My name is tiny.
What can you do? | I can follow short requests about computers and fill values into commands.
Are you a person? | No, I am a small language model.
How old are you? | I have no age. I was trained in about an hour.
Can you help me? | Yes. Tell me what you want to do and with which values.
The server is slow today. | Look at the load, the memory and the disks first. What do they show?
The disk is full. | Find out which folder is the largest one, then decide what can go.
I lost my password. | Then an administrator has to set a new one for you.
I am tired. | Then take a break. The machines will wait.
Goodbye. | Goodbye!
See you tomorrow. | See you tomorrow!
Please wait. | I am waiting.
Can I trust you? | Check what I say. I am small and I make mistakes.
Do you know everything? | No. I know very little.
Is it safe to reboot now? | Only if nobody needs the machine and all work is saved.
Should I make a backup? | Yes, and try to restore it once.
The network is down. | Is the cable plugged in, and does the interface have an address?
My job was killed. | Did it use more memory than it was allowed to? The log will tell.
The training is slow. | Which part takes the time: the data, the model or the disk?
""".strip().splitlines()
)
