"""The ClientApp: it unpacks a Message, lets the client answer, and packs the reply."""

import json

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedlap_flower.client import answer, read_name

app = ClientApp()


@app.query()
def describe(message: Message, context: Context) -> Message:
    """Return the number of rows, or the name that this node claims if the server asks for it."""
    if "request" not in message.content:
        return Message(_pack({"name": read_name(context.node_config)}, b""), reply_to=message)
    return _reply("describe", message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run the local work of a round."""
    return _reply("train", message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Write the personal model and return sums over this client's rows."""
    return _reply("evaluate", message, context)


def _reply(verb: str, message: Message, context: Context) -> Message:
    request = message.content["request"]
    facts, state = answer(verb, json.loads(request["facts"]), request["state"], context.node_config)
    return Message(_pack(facts, state), reply_to=message)


def _pack(facts: dict[str, object], state: bytes) -> RecordDict:
    return RecordDict({"reply": ConfigRecord({"facts": json.dumps(facts), "state": state})})
