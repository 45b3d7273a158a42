"""The commands on roots and safetensors files. Each module is one group; they load what they use."""
