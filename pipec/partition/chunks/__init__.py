"""Several chunks per device: the rows of ``benchmarks.partition chunks``.

`lattice` searches among the ideals, of which all rows but inceptionv3 and op_bert_l-3 have few;
`closure` proves the two rows of op_bert_l-3, `model` those of
bert24, gnmt and op_resnet50.
"""
