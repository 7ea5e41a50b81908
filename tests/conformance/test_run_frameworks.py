"""``fastload run`` and frameworks that build loaders themselves: Accelerate, Lightning, timm, Transformers' Trainer."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow


def run(package, path, source, *options, stderr=False):
    """Run a script that uses ``package`` under ``fastload run``; it must succeed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    path.write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "fastload", "run", "--device", "cpu", *options, str(path)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=path.parent, timeout=170
    )
    assert done.returncode == 0, done.stderr
    return done.stderr if stderr else done.stdout


def test_what_accelerate_prepares_keeps_a_fastloader_and_its_own_behaviour(tmp_path):
    run(
        "accelerate",
        tmp_path / "script.py",
        """
        import torch
        import accelerate.data_loader
        from accelerate import Accelerator
        from accelerate.data_loader import DataLoaderShard
        from torch.utils.data import DataLoader
        from fastload import FastLoader
        from fastload.commands.run.patch import TorchDataLoader

        assert accelerate.data_loader.DataLoader is DataLoader
        data = torch.arange(10.0)
        accelerator = Accelerator(gradient_accumulation_steps=4)
        model = torch.nn.Linear(1, 1)

        def train(loader):
            torch.manual_seed(0)
            prepared = accelerator.prepare(loader)
            seen = []
            for _ in range(2):
                for batch in prepared:
                    with accelerator.accumulate(model):
                        state = accelerator.gradient_state
                        end = state.end_of_dataloader
                        seen.append((batch.tolist(), end, accelerator.sync_gradients, state.remainder))
            return prepared, seen

        prepared, seen = train(DataLoader(data, batch_size=4, shuffle=True))
        assert type(prepared) is DataLoaderShard and isinstance(prepared, DataLoader)
        assert type(prepared.base_dataloader) is DataLoader and prepared.device_prefetch == 3
        assert isinstance(prepared, FastLoader) and prepared.plan.engine == "torch"
        accelerate.data_loader.DataLoader = TorchDataLoader
        accelerator.step = 0
        plain, expected = train(TorchDataLoader(data, batch_size=4, shuffle=True))
        assert type(plain.base_dataloader) is TorchDataLoader
        assert seen == expected and len(seen) == 6
        assert [end for _, end, _, _ in seen] == [False, False, True] * 2

        accelerate.data_loader.DataLoader = DataLoader
        skipped = accelerator.skip_first_batches(prepared, 1)
        assert type(skipped.base_dataloader) is DataLoader and len(list(skipped)) == 2
        """,
        "--device-prefetch",
        "3",
    )


def test_what_accelerate_prepares_is_pickled_and_copied_as_torchs(tmp_path):
    run(
        "accelerate",
        tmp_path / "script.py",
        """
        import copy, pickle
        import torch
        from accelerate import Accelerator
        from torch.utils.data import DataLoader
        from fastload import FastLoader
        from fastload.loader_state import state_of

        accelerator = Accelerator(cpu=True)
        for batch_size in (2, None):
            prepared = accelerator.prepare(DataLoader(torch.arange(6), batch_size=batch_size))
            expected = [batch.tolist() for batch in prepared]
            for again in (pickle.loads(pickle.dumps(prepared)), copy.deepcopy(prepared)):
                assert type(again) is type(prepared) and isinstance(again.base_dataloader, FastLoader)
                assert state_of(again.base_dataloader) is not state_of(prepared.base_dataloader)
                assert again.base_dataloader is not again
                assert [batch.tolist() for batch in again] == expected, again
        """,
    )


def test_torchdatas_stateful_loader_is_a_fastloader_that_keeps_its_state(tmp_path):
    source = """
        import pickle, warnings
        warnings.simplefilter("ignore")  # torchdata calls what torch deprecates
        from torchdata.stateful_dataloader import StatefulDataLoader
        import fastload
        from fastload import FastLoader
        from fastload.loader_state import state_of

        def make(num_workers, persistent=False):
            return StatefulDataLoader(range(64), 2, True, num_workers=num_workers, persistent_workers=persistent)

        def lists(batches):
            return [batch.tolist() for batch in batches]

        def main():
            for num_workers, persistent in (0, False), (1, False), (1, True):
                loader = make(num_workers, persistent)
                assert isinstance(loader, FastLoader) and type(loader).__name__ == "StatefulDataLoader"
                again = pickle.loads(pickle.dumps(loader))
                assert loader.device_prefetch == again.device_prefetch == 3
                assert state_of(again) is not state_of(loader)
                assert loader.plan.engine == "torch" and "prefetch_to_device" in str(loader.plan.notes)
                iterator = iter(loader)
                lists(next(iterator) for _ in range(5))
                state, rest = loader.state_dict(), lists(iterator)
                other = make(num_workers, persistent)
                other.load_state_dict(state)
                assert lists(other) == rest and len(rest) == 27
                for _ in fastload.progress(loader, disable=True):
                    pass
                stats = loader.stats()
                assert (stats.epochs, stats.batches, stats.images) == (2, 64, 128), stats
                assert {"fetch", "collate"} <= set(stats.stages)
                assert "batches" in str(loader.report())
                verified = fastload.verify(lambda: make(num_workers, persistent))
                assert verified and verified.is_torchs, verified
                with loader:
                    workers = getattr(iter(loader), "_workers", [])
                assert len(workers) == num_workers and not any(worker.is_alive() for worker in workers)
                assert loader.state_dict()
                try:
                    iter(loader)
                except RuntimeError as error:
                    assert "this FastLoader is closed" in str(error)
                else:
                    raise SystemExit("a closed loader was iterated")

        if __name__ == "__main__":
            main()
    """
    said = run("torchdata", tmp_path / "script.py", source, "--explain", "--device-prefetch", "3", stderr=True)
    assert "torchdata.stateful_dataloader" in said.splitlines()[0]
    assert said.count("engine torch, batches on cpu") >= 2


@pytest.mark.thorough
def test_what_lightning_re_creates_is_a_fastloader_with_the_same_options(tmp_path):
    run(
        "lightning",
        tmp_path / "script.py",
        """
        import torch
        from lightning.fabric.utilities import data
        from torch.utils.data import DataLoader, SequentialSampler
        from fastload import FastLoader

        assert data.DataLoader is DataLoader

        class Mine(DataLoader):
            def __init__(self, size, **more):
                super().__init__(range(size), **more)

        with data._replace_dunder_methods(DataLoader, "dataset"):
            hooked = [DataLoader(range(4), batch_size=2, device_prefetch=5), Mine(4, batch_size=2)]
        free = [DataLoader(range(4), batch_size=2, device_prefetch=5), FastLoader(range(4), batch_size=2)]
        for loader in hooked + free:
            again = data._update_dataloader(loader, SequentialSampler(range(2)))
            assert type(again) is type(loader) and isinstance(again, FastLoader)
            assert again.device_prefetch == loader.device_prefetch
            assert again.memory_format == torch.contiguous_format
            assert [batch.tolist() for batch in again] == [[0, 1]]
        """,
        "--memory-format",
        "contiguous",
    )


def test_lightning_trains_on_a_fastloader(tmp_path):
    source = """
        import logging, warnings
        import torch
        import lightning
        from torch.utils.data import DataLoader, TensorDataset

        class Line(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)
            def training_step(self, batch, _):
                return self.layer(batch[0]).sum()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.01)
            def train_dataloader(self):
                return DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2, shuffle=True)

        trainer = lightning.Trainer(max_epochs=2, overfit_batches=2, accelerator="cpu", logger=False,
                                    enable_checkpointing=False, enable_progress_bar=False)
        trainer.fit(Line())
        print(type(trainer.train_dataloader).__mro__[1].__name__, trainer.global_step)
    """
    assert run("lightning", tmp_path / "script.py", source).splitlines()[-1] == "FastLoader 4"


def test_timms_loaders_are_fastloaders(tmp_path):
    run(
        "timm",
        tmp_path / "script.py",
        """
        import torch
        from timm.data import create_loader
        from timm.data.loader import MultiEpochsDataLoader
        from torch.utils.data import DataLoader
        from fastload import FastLoader

        class Images(torch.utils.data.Dataset):
            transform = None
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return torch.zeros(3, 8, 8, dtype=torch.uint8).numpy(), index

        assert issubclass(MultiEpochsDataLoader, FastLoader)
        for many in (False, True):
            loader = create_loader(Images(), (3, 8, 8), batch_size=2, num_workers=1, use_prefetcher=True,
                                   use_multi_epochs_loader=many, device=torch.device("cpu"), persistent_workers=False)
            assert isinstance(loader.loader, FastLoader)
            for _ in range(2):
                assert [labels.tolist() for _, labels in loader] == [[0, 1], [2, 3]]
        """,
    )


def test_the_trainer_of_transformers_trains_on_a_fastloader(tmp_path):
    source = """
        import torch
        from transformers import Trainer, TrainingArguments
        from fastload import FastLoader

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)
            def forward(self, x):
                return {"loss": self.layer(x).sum()}

        arguments = TrainingArguments(output_dir="out", max_steps=3, per_device_train_batch_size=2, use_cpu=True,
                                      report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no")
        trainer = Trainer(Model(), arguments, train_dataset=[{"x": torch.ones(1)} for _ in range(6)])
        loader = trainer.get_train_dataloader()
        assert isinstance(loader.base_dataloader, FastLoader), type(loader.base_dataloader)
        trainer.train()
        print("steps", trainer.state.global_step)
    """
    assert "steps 3" in run("transformers", tmp_path / "script.py", source)
