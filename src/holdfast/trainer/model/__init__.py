"""The model a run trains: loaded, adapted, its layers and kernels. Trains nothing."""
