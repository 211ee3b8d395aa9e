import pytest

from loadtest.traces.sessions import Service, Session, Turn, all_turns, shows, steps

SERVICE = Service(ttft_s=1.0, tpot_s=0.1)


def turn(output_tokens: int = 10, think_s: float = 0.0, **more: object) -> Turn:
    return Turn(input_tokens=100, output_tokens=output_tokens, think_s=think_s, **more)  # type: ignore[arg-type]


def test_a_turn_comes_after_the_answer_and_the_pause() -> None:
    session = Session(id="a", start_s=5.0, turns=(turn(think_s=3.0), turn(20, service_s=7.0), turn()))
    found = steps(session, SERVICE)
    assert [step.at_s for step in found] == pytest.approx([5.0, 5 + 2 + 3, 10 + 7])
    assert [step.after for step in found] == [(), ((0, 3.0),), ((1, 0.0),)]


def test_the_caller_waits_for_all_its_agents() -> None:
    quick = Session(id="a/1", start_s=1.0, turns=(turn(think_s=0.5),))
    slow = Session(id="a/2", start_s=0.0, turns=(turn(think_s=4.0), turn(think_s=2.0)))
    session = Session(id="a", start_s=0.0, turns=(turn(think_s=1.0, agents=(quick, slow)), turn()))
    found = steps(session, SERVICE)
    assert [step.session.id for step in found] == ["a", "a/1", "a/2", "a/2", "a"]
    # Answered at 2; quick: 3 to 5, reports 5.5; slow: 2 to 4, 8 to 10, reports 12; then a pause of 1.
    assert [step.at_s for step in found] == pytest.approx([0.0, 3.0, 2.0, 8.0, 13.0])
    assert found[4].after == ((1, 1.5), (3, 3.0))


def test_steps_can_be_appended_to_others() -> None:
    session = Session(id="a", start_s=0.0, turns=(turn(), turn()))
    found = steps(session, SERVICE, into=steps(session, SERVICE))
    assert [step.after for step in found] == [(), ((0, 0.0),), (), ((2, 0.0),)]


def test_a_step_knows_its_place_and_who_waits_for_it() -> None:
    inner = Session(id="a/1/1", start_s=0.0, turns=(turn(),))
    agent = Session(id="a/1", start_s=0.0, turns=(turn(agents=(inner,)), turn()))
    session = Session(id="a", start_s=0.0, turns=(turn(agents=(agent,)), turn()))
    found = steps(session, SERVICE)
    assert [(step.session.id, step.number, step.is_last) for step in found] == [
        ("a", 0, False), ("a/1", 0, False), ("a/1/1", 0, True), ("a/1", 1, True), ("a", 1, True)
    ]  # fmt: skip
    assert {step.root.id for step in found} == {"a"}


def test_the_last_turn_shows_text_whatever_it_holds_and_a_sub_agent_none() -> None:
    hidden = turn(is_visible=False)
    agent = Session(id="a/1", start_s=0.0, turns=(turn(), turn()))
    session = Session(id="a", start_s=0.0, turns=(turn(is_visible=False, agents=(agent,)), turn(), hidden))
    assert [shows(session, number) for number in range(3)] == [False, True, True]
    assert [step.is_visible for step in steps(session, SERVICE)] == [False, False, False, True, True]


def test_all_turns_include_those_of_agents() -> None:
    agent = Session(id="a/1", start_s=0.0, turns=(turn(2), turn(3)))
    session = Session(id="a", start_s=0.0, turns=(turn(1, agents=(agent,)), turn(4)))
    assert [one.output_tokens for one in all_turns(session)] == [1, 2, 3, 4]
