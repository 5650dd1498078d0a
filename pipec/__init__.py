"""pipec: a compiler toolkit for pipeline-parallel DNN training and inference."""
