"""A training in two processes that uploads to the Hub server set in the environment."""

import json
import sys
from pathlib import Path

from helpers.trainer.tiny_trainings import At, make_trainer
from lightrainer.lightning_modules.checkpoints import list_checkpoints


def main() -> None:
    out = Path(sys.argv[1])
    arguments = json.loads(sys.argv[2])
    resume = arguments.pop("resume", None)
    trainer = make_trainer(out, **arguments)
    taken: list[int] = []
    trainer.add_callback(
        At("on_step_end", lambda host, state, control: taken.append(state.global_step))
    )
    trainer.train(resume_from_checkpoint=resume)
    result = {
        "rank": trainer.args.process_index,
        "hub_model_id": trainer.hub_model_id,
        "steps": trainer.state.global_step,
    }
    result |= {"taken": taken, "pushed": trainer.push_in_progress is not None}
    result |= {"checkpoints": [path.name for path in list_checkpoints(out)]}
    (out / f"result-{trainer.args.process_index}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
