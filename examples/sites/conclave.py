"""Sites of Conclave in Python. Copy this file beside your own; docs/sites.md describes it."""
import json
import sys


def dump(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


class Site:
    """One site. Its fields are its state: they hold what JSON can hold, and lists in the place of tuples."""

    def __init__(self, me, nodes):
        self.me, self.nodes = me, nodes  # this site, and the number of sites; their names are 0 to nodes - 1

    on_start = on_recover = on_witness = lambda self, *_: None  # these three handlers are optional

    def send(self, to, message):
        self._effects.append('{"send":{"to":%d,"message":%s}}' % (to, dump(message)))

    def broadcast(self, message):
        self._effects.append('{"broadcast":{"message":%s}}' % dump(message))

    def emit(self, event):
        self._effects.append(dump({"emit": {"event": event}}))

    def enter(self, fence=None):  # mutual exclusion
        self.emit("granted" if fence is None else {"granted": {"fence": fence}})

    def decide(self, leader):  # election
        self.emit({"elected": {"leader": leader}})

    def vacate(self):  # election: the leader is not known any more
        self.emit("vacant")

    def arm(self, timer, least, most):  # in seconds
        least, most = ({"secs": int(s), "nanos": round(s % 1 * 1e9)} for s in (least, most))
        self._effects.append(dump({"arm": {"timer": timer, "min": least, "max": most}}))

    def disarm(self, timer):
        self._effects.append(dump({"disarm": {"timer": timer}}))

    def choose(self, below):  # a random number from 0 to below - 1
        print('{"choose":%d}' % below, file=self._out, flush=True)
        return json.loads(sys.stdin.readline())["chosen"]


def split(value):
    """Splits "name" or {"name": content} into the name and a list of contents."""
    return (value, []) if isinstance(value, str) else next((name, [rest]) for name, rest in value.items())


def step(site, line):
    """Calls the handler of an input: on_start, on_acquire, on_release, on_KIND(sender, content), on_TIMER."""
    name, rest = split(line["input"])
    if name == "message":
        name, content = split(rest[0]["message"])
        rest = [rest[0]["from"], *content]
    elif rest:  # a command or a timer
        name, rest = split(rest[0])
    getattr(site, "on_" + name)(*rest)


def serve(new_site, **hello):
    """Runs sites until the input ends. The other arguments describe the algorithm: promises=["ME1"], ..."""
    out, sys.stdout, sites = sys.stdout, sys.stderr, {}  # print() must not disturb the protocol
    for line in iter(sys.stdin.readline, ""):
        line = json.loads(line)
        if "hello" in line:
            reply = dump({"hello": {"protocol": 1, "saves": True, **hello}})
        elif "reset" in line:
            reply, sites = '{"effects":[]}', {}
        else:
            me = line["site"]
            if line["input"] == "start" or "load" in line:
                sites[me] = new_site(me, line["nodes"])
                vars(sites[me]).update(line.get("group", {}), **line.get("load", {}))
            site = sites[me]
            site._now, site._life, site._effects, site._out = line["now"], line["life"], [], out
            step(site, line)
            reply = '{"effects":[%s],"clock":%d' % (",".join(site._effects), getattr(site, "clock", 0))
            if "save" in line:
                state = {name: value for name, value in vars(site).items() if name[0] != "_"}
                if json.loads(dump(state)) != state:
                    raise TypeError("a field changes when it is saved as JSON: use lists and keys that are strings")
                reply += ',"saved":' + dump(state)
            reply += "}"
        print(reply, file=out, flush=True)
