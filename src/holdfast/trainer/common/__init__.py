"""What every part of the trainer may use: the job, devices, running out of memory, refusals, a micro-batch. Imports no other part."""
