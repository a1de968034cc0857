"""Experiments: which runs a grid consists of (`plan`), how one is trained (`running`), what came of it (`outcomes`,
`tables`)."""
