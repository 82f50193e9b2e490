"""torchtune's own LoRA recipe for one device, with the parts beside this file importable. Arguments: the recipe's."""

import runpy
import sys
import sysconfig
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import probe
from torchtune import training

scale = training.scale_grads


def scale_and_tell(model, factor):
    """The recipe's loss is a sum until its gradients are scaled by one over the labels."""
    probe.RECORD.divisor = 1 / float(factor)
    return scale(model, factor)


training.scale_grads = scale_and_tell
runpy.run_path(str(Path(sysconfig.get_paths()["purelib"]) / "recipes/lora_finetune_single_device.py"), run_name="__main__")
