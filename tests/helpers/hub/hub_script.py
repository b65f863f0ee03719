"""A training in two processes that uploads to the Hub server set in the environment."""

import json
import sys
from pathlib import Path

from helpers.trainer.tiny_trainings import At, trainer
from lightrainer.lightning_modules.checkpoints import list_checkpoints


def main() -> None:
    out = Path(sys.argv[1])
    arguments = json.loads(sys.argv[2])
    resume = arguments.pop("resume", None)
    made = trainer(out, **arguments)
    taken: list[int] = []
    made.add_callback(
        At("on_step_end", lambda host, state, control: taken.append(state.global_step))
    )
    made.train(resume_from_checkpoint=resume)
    result = {
        "rank": made.args.process_index,
        "hub_model_id": made.hub_model_id,
        "steps": made.state.global_step,
    }
    result |= {"taken": taken, "pushed": made.push_in_progress is not None}
    result |= {"checkpoints": [path.name for path in list_checkpoints(out)]}
    (out / f"result-{made.args.process_index}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
