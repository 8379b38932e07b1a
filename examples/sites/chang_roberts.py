"""Chang and Roberts' election on a ring: the highest candidate travels round, and each site passes on the higher one."""
from conclave import Site, serve


class ChangRoberts(Site):
    def on_start(self):
        self.participant = False  # self.ranks has the rank of each site

    def on_elect(self):
        self.begin()

    def on_election(self, sender, theirs):
        mine = self.candidate()
        if theirs == mine and self.participant:  # it has travelled all round
            self.settle(self.me)
        elif theirs > mine:
            self.participate()
            self.pass_on({"election": theirs})
        elif theirs < mine and not self.participant:
            self.begin()

    def on_elected(self, sender, leader):
        if leader != self.me:
            self.settle(leader)

    def candidate(self):
        return [self.ranks[self.me], self.me]

    def begin(self):
        self.participate()
        self.pass_on({"election": self.candidate()})

    def participate(self):
        self.participant = True
        self.vacate()

    def settle(self, leader):
        self.participant = False
        self.decide(leader)
        self.pass_on({"elected": leader})

    def pass_on(self, message):
        self.send((self.me + 1) % self.nodes, message)


if __name__ == "__main__":
    serve(ChangRoberts, problem="election", name="Chang-Roberts in Python", needs={"fifo": True})
