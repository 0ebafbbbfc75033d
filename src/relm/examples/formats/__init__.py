"""Examples in other programs' formats, written and read: TFRecord, Megatron's indexed files, the JSON lines of tpu_pretrain."""
