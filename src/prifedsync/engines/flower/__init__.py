"""Flower as the carrier between machines: the only folder that imports flwr.

    letters    frames of `asking` as Flower's messages, and back
    pieces     what a message is made of, within a bound
    calls      Flower's HTTP interfaces: tasks, messages, runs, nodes
    link       the server's side: a run at a SuperLink, submitted again where that was restarted
    exchange   all questions that are under way, and the replies to them
    site       the client's side: questions from a SuperNode to an owner's socket, and the answers back

Code that a SuperLink sends is never unpacked or imported: both sides take Flower's tasks themselves, and answer them with
what is installed.
"""
