"""Ricart and Agrawala's algorithm: request permission from all other sites, and enter when all have replied."""
from conclave import Site, serve


class RicartAgrawala(Site):
    def on_start(self):
        self.clock = 0  # the highest number seen
        self.mine = None  # this site's request, [number, site], from the request until the exit
        self.replies = []  # the sites that have replied to it
        self.deferred = []  # the requests of other sites whose replies wait for the exit

    def on_acquire(self):
        self.clock += 1
        self.mine = [self.clock, self.me]
        self.broadcast({"request": self.mine})
        self.enter_if_allowed()  # a group of one site needs no reply

    def on_request(self, sender, theirs):
        self.clock = max(self.clock, theirs[0])
        if self.mine and self.mine < theirs:
            self.deferred = sorted([*self.deferred, theirs])
        else:
            self.reply_to(theirs)

    def on_reply(self, sender, reply):
        self.clock = max(self.clock, reply["seen"])
        if reply["to"] == self.mine and sender not in self.replies:
            self.replies = sorted([*self.replies, sender])
            self.enter_if_allowed()

    def on_release(self):
        self.mine = None
        for theirs in self.deferred:
            self.reply_to(theirs)
        self.replies, self.deferred = [], []

    def on_witness(self, time):
        self.clock = max(self.clock, time)

    def reply_to(self, theirs):
        self.send(theirs[1], {"reply": {"to": theirs, "seen": self.clock}})

    def enter_if_allowed(self):
        if len(self.replies) == self.nodes - 1:
            number, site = self.mine
            self.enter(fence=number * self.nodes + site)


if __name__ == "__main__":
    promises = ["ME1", "ME1-causal", "ME2", "ME3", "fences"]
    serve(RicartAgrawala, problem="mutex", name="Ricart-Agrawala in Python", promises=promises)
